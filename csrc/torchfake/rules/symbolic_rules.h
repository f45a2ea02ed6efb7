// Symbolic rules, by family: the sizes of outputs as expressions. See Note [Symbolic calls].
#pragma once

#include <torchfake/dispatch/symbolic_call.h>

namespace torchfake {

namespace symbolic_rules {

using Sizes = SymbolicCall::Sizes;

inline bool guard(const c10::SymBool& condition) {
  return condition.guard_bool(__FILE__, __LINE__);
}

inline bool is_one(const c10::SymInt& size) {
  const std::optional<int64_t> number = size.maybe_as_int();
  return number ? *number == 1 : guard(size.sym_eq(1));
}

inline Sizes sizes_of(const at::Tensor& tensor) {
  const c10::SymIntArrayRef sizes = tensor.sym_sizes();
  return Sizes(sizes.begin(), sizes.end());
}

inline Sizes strides_of(const at::Tensor& tensor) {
  const c10::SymIntArrayRef strides = tensor.sym_strides();
  return Sizes(strides.begin(), strides.end());
}

// Adds the sizes of another tensor to `sizes`, aligned at the end. Guards that equal sizes are equal.
bool broadcast(Sizes& sizes, c10::SymIntArrayRef other);

// Operators, with their names as in the table of operators.
struct Row {
  const char* names;
  SymbolicRule rule;
};
c10::ArrayRef<Row> views();

}  // namespace symbolic_rules

}  // namespace torchfake
