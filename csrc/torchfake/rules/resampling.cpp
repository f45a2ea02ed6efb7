// Interpolation by scale factors: the composite that turns factors into sizes.
#include <torchfake/rules/resampling.h>

#include <ATen/core/dispatch/Dispatcher.h>

#include <torchfake/rules/rules.h>

#include <cmath>

namespace torchfake {

namespace {

// floor(size * factor). Computed in integers if the factor is a fraction whose denominator is a small power of two.
c10::SymInt scaled(const c10::SymInt& size, double factor) {
  constexpr int64_t kLargest = 1 << 16;
  for (int64_t below = 1; below <= kLargest; below *= 2) {
    const double above = factor * static_cast<double>(below);
    if (above == std::floor(above) && above >= 0 && above <= static_cast<double>(kLargest)) {
      return size * static_cast<int64_t>(above) / below;
    }
  }
  return static_cast<int64_t>(static_cast<double>(size.guard_int(__FILE__, __LINE__)) * factor);
}

}  // namespace

bool resample_by_factors(const Call& call) {
  const at::Tensor input = call.arg(0).toTensor();
  const bool is_symbolic =
      input.unsafeGetTensorImpl()->has_symbolic_sizes_strides() || (call.arg(1).isList() && !call.arg(1).isIntList());
  if (!is_symbolic) {
    return false;
  }
  const size_t last = call.num_args() - 1;
  const bool has_sizes = !call.arg(1).isNone();
  const bool has_factors = !call.arg(last).isNone();
  if (has_sizes == has_factors || input.dim() < 3) {
    return false;  // refused by the decomposition
  }
  const int64_t dims = input.dim() - 2;
  std::vector<c10::SymInt> sizes;
  std::vector<double> factors;
  if (has_factors) {
    factors = call.arg(last).toDoubleVector();
  } else {
    for (const c10::IValue& size : call.arg(1).toListRef()) {
      sizes.push_back(size.toSymInt());
    }
  }
  if (static_cast<int64_t>(has_factors ? factors.size() : sizes.size()) != dims) {
    return false;
  }
  for (int64_t i = 0; has_factors && i < dims; ++i) {
    sizes.push_back(scaled(input.sym_size(i + 2), factors[i]));
  }
  torch::jit::Stack stack{input, c10::SymIntArrayRef(sizes)};
  for (size_t i = 2; i < last; ++i) {
    stack.push_back(call.arg(i));
  }
  for (int64_t i = 0; i < dims; ++i) {
    stack.push_back(has_factors ? c10::IValue(factors[i]) : c10::IValue());
  }
  c10::Dispatcher::singleton().findSchemaOrThrow(call.traits.name.c_str(), "").callBoxed(stack);
  answer_with(call, std::move(stack.front()));
  return true;
}

}  // namespace torchfake
