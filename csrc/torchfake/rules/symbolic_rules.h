// Symbolic rules, by family: the sizes of outputs as expressions. See Note [Symbolic calls].
#pragma once

#include <torchfake/dispatch/symbolic_call.h>

namespace torchfake {

namespace symbolic_rules {

using Sizes = SymbolicCall::Sizes;

// What has to hold for the call to be valid. Of a size that only data knows, it is taken to, and checked at run time.
inline bool guard(const c10::SymBool& condition) {
  return condition.expect_true(__FILE__, __LINE__);
}

// What may hold or not, and of a size that only data knows is taken not to.
inline bool if_known(const c10::SymBool& condition) {
  return condition.guard_or_false(__FILE__, __LINE__);
}

// By the hint; nothing where only data knows.
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

// Adds the sizes of another tensor to `sizes`, aligned at the end. Guards that equal sizes are equal.
bool broadcast(Sizes& sizes, c10::SymIntArrayRef other);

// Operators, with their names as in the table of operators.
using Use = SymbolicRules::Use;
struct Row {
  const char* names;
  SymbolicRule rule;
  Use use = Use::kFresh;
};
c10::ArrayRef<Row> views();

}  // namespace symbolic_rules

}  // namespace torchfake
