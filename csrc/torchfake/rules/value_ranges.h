// Bounds of operator results.
#pragma once

#include <torchfake/values/value_ranges.h>

namespace torchfake {

// The row of an operator, or null if the operator implies no bounds.
const RangeRow* find_range_row(const c10::OperatorHandle& op);

}  // namespace torchfake
