// Symbolic rules, by family: the sizes of outputs as expressions. See Note [Symbolic calls].
#pragma once

#include <torchfake/dispatch/symbolic_call.h>

namespace torchfake {

namespace symbolic_rules {

using Sizes = SymbolicCall::Sizes;

// A condition that must hold for a valid call. For a data-dependent size it is assumed, and checked at run time.
inline bool guard(const c10::SymBool& condition) {
  return condition.expect_true(__FILE__, __LINE__);
}

// A condition that may or may not hold. For a data-dependent size it is assumed to be false.
inline bool if_known(const c10::SymBool& condition) {
  return condition.guard_or_false(__FILE__, __LINE__);
}

// The condition's value by its hint; nothing if it depends on data.
inline std::optional<bool> decided(const c10::SymBool& condition) {
  const bool is_true = condition.guard_or_false(__FILE__, __LINE__);
  return is_true == condition.guard_or_true(__FILE__, __LINE__) ? std::optional(is_true) : std::nullopt;
}

inline bool is_one(const c10::SymInt& size) {
  const std::optional<int64_t> number = size.maybe_as_int();
  return number ? *number == 1 : if_known(size.sym_eq(1));
}

inline Sizes sizes_of(const at::Tensor& tensor) {
  const c10::SymIntArrayRef sizes = tensor.sym_sizes();
  return Sizes(sizes.begin(), sizes.end());
}

inline Sizes strides_of(const at::Tensor& tensor) {
  const c10::SymIntArrayRef strides = tensor.sym_strides();
  return Sizes(strides.begin(), strides.end());
}

// Broadcasts `sizes` with the sizes of another tensor. Adds guards that equal sizes are equal.
bool broadcast(Sizes& sizes, c10::SymIntArrayRef other);

// The strides of a view of `self` with these sizes if `self` is contiguous for certain values of symbols of PyTorch's own
// that have no hints; nothing if it has none of these. As PyTorch does, assumes that `self` is contiguous if it is at
// their optimization hints or at example values, and asserts it.
std::optional<Sizes> strides_if_contiguous(const at::Tensor& self, const Sizes& sizes);

// Operators, named as in the table of operators.
using Use = SymbolicRules::Use;
struct Row {
  const char* names;
  SymbolicRule rule;
  Use use = Use::kFresh;
};
c10::ArrayRef<Row> views();
c10::ArrayRef<Row> rearrangements();
c10::ArrayRef<Row> decompositions();

}  // namespace symbolic_rules

}  // namespace torchfake
