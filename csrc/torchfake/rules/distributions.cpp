// Operators that draw random samples, and their gradients.
#include <ATen/TensorIterator.h>
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

// Requires float or double on the CPU, whose kernel computes in double.
void require_wide(const at::Tensor& self, const char* kernel) {
  const bool is_narrow = self.scalar_type() == c10::kHalf || self.scalar_type() == c10::kBFloat16;
  TORCH_CHECK_NOT_IMPLEMENTED(
      self.is_floating_point() && !c10::isFloat8Type(self.scalar_type()) && !(is_narrow && claimed_device().is_cpu()),
      '"',
      kernel,
      "\" not implemented for '",
      self.scalar_type(),
      "'");
}

at::Tensor drawn_of_wide(const at::Tensor& self) {
  require_wide(self, "gamma_cpu");
  return contiguous_like(self);
}

// Gradients start with the sizes of the first argument and are resized if another is larger.
at::Tensor standard_gamma_grad(const at::Tensor& self, const at::Tensor& output) {
  at::Tensor result = contiguous_like(self);
  at::TensorIteratorConfig().add_output(result).add_const_input(self).add_const_input(output).build();
  require_wide(self, "_standard_gamma_grad_cpu");
  return result;
}

at::Tensor dirichlet_grad(const at::Tensor& x, const at::Tensor& alpha, const at::Tensor& total) {
  at::Tensor result = contiguous_like(x);
  at::TensorIteratorConfig()
      .add_output(result)
      .add_const_input(x)
      .add_const_input(alpha)
      .add_const_input(total)
      .build();
  require_wide(x, "_dirichlet_grad_cpu");
  return result;
}

at::Tensor binomial(const at::Tensor& count, const at::Tensor& prob) {
  TORCH_CHECK_VALUE(
      count.is_floating_point(), "binomial only supports floating-point dtypes for count, got: ", count.scalar_type());
  TORCH_CHECK_VALUE(
      prob.is_floating_point(), "binomial only supports floating-point dtypes for prob, got: ", prob.scalar_type());
  require_wide(count, "binomial_cpu");
  // The result starts with the sizes of the counts and is resized if there are more probabilities.
  at::Tensor drawn = contiguous_like(count);
  at::TensorIteratorConfig().add_output(drawn).add_const_input(count).add_const_input(prob).build();
  return drawn;
}

TwoTensors native_dropout(const at::Tensor& input, double p, std::optional<bool> train) {
  const bool drops = train.value_or(true);
  TORCH_CHECK(!drops || (p >= 0 && p <= 1), "dropout probability has to be between 0 and 1, but got ", p);
  if (input.numel() == 0 && claimed_device().is_cpu()) {
    return {input, strided_like(input)};  // the CPU returns an empty input itself, and an empty tensor as the mask
  }
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
      kernel<ops::_standard_gamma, &drawn_of_wide>(),
      kernel<ops::_standard_gamma_grad, &standard_gamma_grad>(),
      kernel<ops::_dirichlet_grad, &dirichlet_grad>(),
      kernel<ops::_sample_dirichlet, &drawn_of_wide>(),
      kernel<ops::binomial, &binomial>(),
      kernel<ops::native_dropout, &native_dropout>(),
      kernel<ops::_fused_dropout, &fused_dropout>(),
      kernel<ops::_masked_scale, &masked_scale>(),
  };
}

}  // namespace torchfake
