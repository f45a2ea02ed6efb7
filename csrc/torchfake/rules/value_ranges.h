// Bounds of operator results.
#pragma once

#include <torchfake/values/value_ranges.h>

namespace torchfake {

// The bounds of `not self` as a bool: known if no value can be zero or all values must be.
RangeAnswer range_of_not(const RangeQuestion& q);

// The rows of operators on masks.
c10::ArrayRef<RangeRow> mask_range_rows();

// The row of an operator, or null if the operator implies no bounds.
const RangeRow* find_range_row(const c10::OperatorHandle& op);

}  // namespace torchfake
