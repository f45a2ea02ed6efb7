// Values for decompositions that read unknown ones.
#include <torchfake/rules/decompositions.h>

namespace torchfake {

namespace {

thread_local std::optional<int> t_checks_that_hold;
thread_local bool t_factors_alone = false;
thread_local bool t_selects_all = false;

}  // namespace

ValidInput::ValidInput(int hold) : Scoped(t_checks_that_hold, hold) {}

std::optional<bool> ValidInput::next_check() {
  if (!t_checks_that_hold) {
    return std::nullopt;
  }
  return (*t_checks_that_hold)-- > 0;
}

FactorsAlone::FactorsAlone() : Scoped(t_factors_alone, true) {}

bool FactorsAlone::active() {
  return t_factors_alone;
}

SelectsAll::SelectsAll() : Scoped(t_selects_all, true) {}

bool SelectsAll::active() {
  return t_selects_all;
}

}  // namespace torchfake
