// Between which bounds the values of a small fake lie that are not known. See Note [Value ranges].
#pragma once

#include <limits>

namespace torchfake {

// Bounds of every element, both of them included.
struct ValueRange {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  // Whether an element may be a NaN beside that.
  bool may_be_nan = true;

  bool says_nothing() const noexcept {
    return low == -std::numeric_limits<double>::infinity() && high == std::numeric_limits<double>::infinity();
  }
  bool is_one_value() const noexcept {
    return low == high && !may_be_nan;
  }
};

}  // namespace torchfake
