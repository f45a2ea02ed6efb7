// Bounds of the unknown values of a small fake. See Note [Value ranges].
#pragma once

#include <limits>

namespace torchfake {

// Inclusive bounds that hold for every element.
struct ValueRange {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  // Whether an element may also be NaN.
  bool may_be_nan = true;

  bool is_one_value() const noexcept {
    return low == high && !may_be_nan;
  }
};

}  // namespace torchfake
