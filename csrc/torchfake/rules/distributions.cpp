// Operators that draw, and the gradients of what they drew.
#include <ATen/ops/empty_like.h>

#include <torchfake/rules/forms.h>
#include <torchfake/rules/results.h>

namespace torchfake {

namespace {

using TwoTensors = std::tuple<at::Tensor, at::Tensor>;

at::Tensor drawn_like(const at::Tensor& self) {
  require_floating(self, "distribution");
  return contiguous_like(self);
}

at::Tensor binomial(const at::Tensor& count, const at::Tensor& prob) {
  TORCH_CHECK_VALUE(
      count.is_floating_point(), "binomial only supports floating-point dtypes for count, got: ", count.scalar_type());
  TORCH_CHECK_VALUE(
      prob.is_floating_point(), "binomial only supports floating-point dtypes for prob, got: ", prob.scalar_type());
  return contiguous_like(count);
}

TwoTensors native_dropout(const at::Tensor& input, double p, std::optional<bool> train) {
  TORCH_CHECK(p >= 0 && p <= 1, "dropout probability has to be between 0 and 1, but got ", p);
  (void)train;
  return {strided_like(input), strided_like(input, c10::kBool)};
}

TwoTensors fused_dropout(const at::Tensor& self) {
  return {strided_like(self), strided_like(self, c10::kByte)};
}

at::Tensor masked_scale(const at::Tensor& self, const at::Tensor& mask) {
  TORCH_CHECK(mask.scalar_type() == c10::kByte, "mask should be torch.uint8 dtype");
  return strided_like(self);
}

}  // namespace

KernelList distribution_kernels() {
  namespace ops = at::_ops;
  return {
      kernel<ops::poisson, &drawn_like>(),
      kernel<ops::_standard_gamma, &drawn_like>(),
      kernel<ops::_standard_gamma_grad, &drawn_like>(),
      kernel<ops::_dirichlet_grad, &drawn_like>(),
      kernel<ops::_sample_dirichlet, &drawn_like>(),
      kernel<ops::binomial, &binomial>(),
      out_form<ops::bernoulli_out, ops::bernoulli>(),
      out_form<ops::randperm_generator_out, ops::randperm_generator>(),
      kernel<ops::native_dropout, &native_dropout>(),
      kernel<ops::_fused_dropout, &fused_dropout>(),
      kernel<ops::_masked_scale, &masked_scale>(),
  };
}

}  // namespace torchfake
