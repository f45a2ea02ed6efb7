// Operators whose result may follow from one operand. See Note [Absorbing operands].
#include <torchfake/rules/operator_table.h>
#include <torchfake/values/absorbing.h>

#include <mutex>
#include <unordered_map>

namespace torchfake {

namespace {

Absorbs find_absorbing(const OpTraits& traits) {
  const auto is_any_of = [&](std::string_view names) {
    return traits.is_aten && names_operator(names, "aten", traits.base_name(), traits.overload);
  };
  if (is_any_of(
          "bitwise_and.Tensor bitwise_and_.Tensor __and__.Tensor __iand__.Tensor logical_and logical_and_ mul.Tensor "
          "mul_.Tensor")) {
    return Absorbs::kZero;
  }
  return is_any_of("bitwise_or.Tensor bitwise_or_.Tensor __or__.Tensor __ior__.Tensor logical_or logical_or_")
      ? Absorbs::kTrue
      : Absorbs::kNothing;
}

// Called only for the few calls with one known and one unknown operand.
Absorbs absorbing(const OpTraits& traits) {
  static std::mutex mutex;
  static auto* const found = new std::unordered_map<const OpTraits*, Absorbs>();
  const std::lock_guard lock(mutex);
  const auto [place, is_new] = found->try_emplace(&traits, Absorbs::kNothing);
  if (is_new) {
    place->second = find_absorbing(traits);
  }
  return place->second;
}

const bool g_registered = [] {
  set_absorbing_lookup(&absorbing);
  return true;
}();

}  // namespace

}  // namespace torchfake
