// What a decomposition that runs on this thread may be told about values that nobody knows, because its outcome does not
// depend on them.
#pragma once

#include <optional>

namespace torchfake {

// While one lives, a decomposition that asks whether its input is valid is told so: the first `hold` of its checks are
// true, the others, which look for something amiss, are false. A real run with bad values would end in an error.
class ValidInput {
 public:
  explicit ValidInput(int hold);
  ~ValidInput();
  ValidInput(const ValidInput&) = delete;
  ValidInput& operator=(const ValidInput&) = delete;
  ValidInput(ValidInput&&) = delete;
  ValidInput& operator=(ValidInput&&) = delete;

  // The answer to the next check; nothing where none lives.
  static std::optional<bool> next_check();

 private:
  std::optional<int> before_;
};

// While one lives, numbers that are asked for are only multiplied with: the step of an optimizer.
class FactorsAlone {
 public:
  FactorsAlone();
  ~FactorsAlone();
  FactorsAlone(const FactorsAlone&) = delete;
  FactorsAlone& operator=(const FactorsAlone&) = delete;
  FactorsAlone(FactorsAlone&&) = delete;
  FactorsAlone& operator=(FactorsAlone&&) = delete;

  static bool active();

 private:
  bool before_;
};

// While one lives, a mask takes everything: what it selects is only summed up.
class SelectsAll {
 public:
  SelectsAll();
  ~SelectsAll();
  SelectsAll(const SelectsAll&) = delete;
  SelectsAll& operator=(const SelectsAll&) = delete;
  SelectsAll(SelectsAll&&) = delete;
  SelectsAll& operator=(SelectsAll&&) = delete;

  static bool active();

 private:
  bool before_;
};

}  // namespace torchfake
