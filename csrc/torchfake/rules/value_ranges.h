// Between which bounds the results of operators lie.
#pragma once

#include <torchfake/values/value_ranges.h>

namespace torchfake {

// The row of an operator, or null where nothing can be said of its results.
const RangeRow* find_range_row(const c10::OperatorHandle& op);

}  // namespace torchfake
