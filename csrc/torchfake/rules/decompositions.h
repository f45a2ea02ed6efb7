// The values that a decomposition on this thread reads in place of unknown ones, if its outcome does not depend on
// them.
#pragma once

#include <torchfake/core/scoped.h>

#include <optional>

namespace torchfake {

// While alive, the validity checks of a decomposition succeed: the first `hold` of them return true, the others, which
// search for invalid values, return false. A real run with invalid values would end in an error.
class ValidInput : Scoped<std::optional<int>> {
 public:
  explicit ValidInput(int hold);

  // The result of the next check, or nothing if no ValidInput is alive.
  static std::optional<bool> next_check();
};

// While alive, numbers read from tensors are only used as factors: an optimizer step.
class FactorsAlone : Scoped<bool> {
 public:
  FactorsAlone();
  static bool active();
};

// While alive, a mask selects everything: the selected elements are only summed up.
class SelectsAll : Scoped<bool> {
 public:
  SelectsAll();
  static bool active();
};

}  // namespace torchfake
