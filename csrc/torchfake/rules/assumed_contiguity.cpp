// Views of tensors whose strides depend on sizes without hints.
#include <torchfake/rules/symbolic_rules.h>

#include <algorithm>

namespace torchfake {

namespace symbolic_rules {

namespace {

// The number at which PyTorch's own symbols are tried: a hint, an optimization hint or an example. Nothing for
// torchfake's symbols, for which no optimization hint exists.
std::optional<int64_t> tried_at(const c10::SymInt& value) {
  if (!value.is_heap_allocated()) {
    return value.as_int_unchecked();
  }
  c10::SymNodeImpl* node = value.toSymNodeImplUnowned();
  const std::optional<NumberFor> number = as_expr_node(node) == nullptr ? number_for(node) : std::nullopt;
  return number ? std::optional(number->value.integer) : std::nullopt;
}

// Whether a tensor is contiguous at the numbers tried. Collects the equalities that this takes.
bool is_contiguous_if(const at::Tensor& self, std::vector<c10::SymBool>& equalities) {
  c10::SymInt expected = 1;
  for (int64_t dim = self.dim(); dim-- > 0;) {
    const c10::SymInt size = self.sym_size(dim);
    if (tried_at(size) == 1) {
      equalities.push_back(size.sym_eq(1));
      continue;
    }
    const std::optional<int64_t> stride = tried_at(self.sym_stride(dim));
    if (!stride || stride != tried_at(expected)) {
      return false;
    }
    equalities.push_back(self.sym_stride(dim).sym_eq(expected));
    expected = expected * size;
  }
  return true;
}

}  // namespace

std::optional<Sizes> strides_if_contiguous(const at::Tensor& self, const Sizes& sizes) {
  const auto has_no_hint = [](const c10::SymInt& value) {
    return value.is_heap_allocated() && !value.toSymNodeImplUnowned()->has_hint();
  };
  const c10::SymIntArrayRef self_sizes = self.sym_sizes();
  const c10::SymIntArrayRef self_strides = self.sym_strides();
  std::vector<c10::SymBool> equalities;
  if (std::none_of(self_sizes.begin(), self_sizes.end(), has_no_hint) &&
      std::none_of(self_strides.begin(), self_strides.end(), has_no_hint)) {
    return std::nullopt;
  }
  if (!is_contiguous_if(self, equalities)) {
    return std::nullopt;
  }
  for (const c10::SymBool& equality : equalities) {
    equality.expect_true(__FILE__, __LINE__);
  }
  Sizes strides(sizes.size(), 1);
  for (size_t dim = sizes.size(); dim-- > 1;) {
    strides[dim - 1] = strides[dim] * sizes[dim];
  }
  return strides;
}

}  // namespace symbolic_rules

}  // namespace torchfake
