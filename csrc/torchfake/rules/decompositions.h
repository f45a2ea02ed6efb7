// What a decomposition that runs on this thread may be told about values that nobody knows, because its outcome does not
// depend on them.
#pragma once

#include <torchfake/core/scoped.h>

#include <optional>

namespace torchfake {

// While one lives, a decomposition that asks whether its input is valid is told so: the first `hold` of its checks are
// true, the others, which look for something amiss, are false. A real run with bad values would end in an error.
class ValidInput : Scoped<std::optional<int>> {
 public:
  explicit ValidInput(int hold);

  // The answer to the next check; nothing where none lives.
  static std::optional<bool> next_check();
};

// While one lives, numbers that are asked for are only multiplied with: the step of an optimizer.
class FactorsAlone : Scoped<bool> {
 public:
  FactorsAlone();
  static bool active();
};

// While one lives, a mask takes everything: what it selects is only summed up.
class SelectsAll : Scoped<bool> {
 public:
  SelectsAll();
  static bool active();
};

}  // namespace torchfake
