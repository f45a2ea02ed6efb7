// Sets a variable, usually thread-local, for the lifetime of an object.
#pragma once

#include <utility>

namespace torchfake {

template <typename T>
class Scoped {
 public:
  Scoped(T& variable, T value) : variable_(variable), before_(std::exchange(variable, std::move(value))) {}
  ~Scoped() {
    variable_ = std::move(before_);
  }
  Scoped(const Scoped&) = delete;
  Scoped& operator=(const Scoped&) = delete;
  Scoped(Scoped&&) = delete;
  Scoped& operator=(Scoped&&) = delete;

 private:
  T& variable_;
  T before_;
};

}  // namespace torchfake
