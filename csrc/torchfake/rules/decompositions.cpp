// What a decomposition may be told about values that nobody knows.
#include <torchfake/rules/decompositions.h>

namespace torchfake {

namespace {

thread_local std::optional<int> t_checks_that_hold;
thread_local bool t_factors_alone = false;
thread_local bool t_selects_all = false;

}  // namespace

ValidInput::ValidInput(int hold) : before_(t_checks_that_hold) {
  t_checks_that_hold = hold;
}

ValidInput::~ValidInput() {
  t_checks_that_hold = before_;
}

std::optional<bool> ValidInput::next_check() {
  if (!t_checks_that_hold) {
    return std::nullopt;
  }
  return (*t_checks_that_hold)-- > 0;
}

FactorsAlone::FactorsAlone() : before_(t_factors_alone) {
  t_factors_alone = true;
}

FactorsAlone::~FactorsAlone() {
  t_factors_alone = before_;
}

bool FactorsAlone::active() {
  return t_factors_alone;
}

SelectsAll::SelectsAll() : before_(t_selects_all) {
  t_selects_all = true;
}

SelectsAll::~SelectsAll() {
  t_selects_all = before_;
}

bool SelectsAll::active() {
  return t_selects_all;
}

}  // namespace torchfake
