// Activations and pointwise operators without a structured kernel, forward and backward.
#include <ATen/TensorIterator.h>
#include <ATen/ops/add.h>
#include <ATen/ops/bitwise_left_shift.h>
#include <ATen/ops/bitwise_right_shift.h>
#include <ATen/ops/clamp_meta_dispatch.h>
#include <ATen/ops/leaky_relu.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/remainder.h>
#include <ATen/ops/sub.h>
#include <c10/core/WrapDimMinimal.h>

#include <torchfake/core/compat.h>
#include <torchfake/rules/forms.h>
#include <torchfake/rules/results.h>

namespace torchfake {

namespace {

using TwoTensors = std::tuple<at::Tensor, at::Tensor>;

at::Tensor hardswish(const at::Tensor& self) {
  require_floating(self, "hardswish");
  return pointwise(self);
}

at::Tensor hardswish_backward(const at::Tensor& grad_output, const at::Tensor& self) {
  at::Tensor result = pointwise(grad_output, self);
  require_floating(result, "hardswish_backward");
  return result;
}

// The bounds do not take part in type promotion.
at::Tensor hardtanh(const at::Tensor& self, const at::Scalar& min, const at::Scalar& max) {
  compat::check_dtype("hardtanh", self.scalar_type() != c10::kBool, "Bool inputs not supported for hardtanh");
  TORCH_CHECK(
      compat::kHardtanhTakesNegativeLimits || self.scalar_type() != c10::kByte ||
          (min.toLong() >= 0 && max.toLong() >= 0),
      "cannot do hardtanh on an unsigned type with negative limits");
  TORCH_CHECK(!self.is_complex(), "clamp is not supported for complex types");
  return strided_like(self);
}

at::Tensor mish_backward(const at::Tensor& grad_output, const at::Tensor& self) {
  return pointwise(grad_output, self);
}

at::Tensor hardtanh_backward(const at::Tensor& grad_output, const at::Tensor& self) {
  at::Tensor result = pointwise(grad_output, self);
  require_floating(result, "hardtanh_backward");
  return result;
}

// The CPU returns a second tensor for the backward; a GPU returns an empty one.
TwoTensors log_sigmoid_forward(const at::Tensor& self) {
  require_floating(self, "log_sigmoid");
  if (claimed_device().is_cpu()) {
    return {contiguous_like(self), contiguous_like(self)};
  }
  return {pointwise(self), empty({0}, self.scalar_type())};
}

// The result starts with the sizes of the gradient and is resized if the input is larger.
at::Tensor log_sigmoid_backward(const at::Tensor& grad_output, const at::Tensor& self, const at::Tensor& buffer) {
  at::Tensor result = strided_like(grad_output);
  at::TensorIteratorConfig config;
  config.add_output(result).add_const_input(self);
  if (claimed_device().is_cpu()) {
    config.add_const_input(buffer);
  }
  config.add_const_input(grad_output).build();
  return result;
}

at::Tensor prelu_kernel(const at::Tensor& self, const at::Tensor& weight) {
  at::Tensor result = strided_like(self);
  at::TensorIteratorConfig().add_output(result).add_const_input(self).add_const_input(weight).build();
  return result;
}

TwoTensors prelu_kernel_backward(const at::Tensor& grad_output, const at::Tensor& self, const at::Tensor& weight) {
  at::Tensor grad_self = empty({0}, self.scalar_type());
  at::Tensor grad_weight = empty({0}, weight.scalar_type());
  at::TensorIteratorConfig()
      .add_output(grad_self)
      .add_output(grad_weight)
      .add_const_input(self)
      .add_const_input(weight)
      .add_const_input(grad_output)
      .build();
  return {grad_self, grad_weight};
}

at::Tensor rrelu_with_noise(const at::Tensor& self, const at::Tensor& noise) {
  TORCH_CHECK(
      self.sizes() == noise.sizes(),
      "noise tensor shape must match self tensor shape. Got self.shape = ",
      self.sizes(),
      " noise.shape = ",
      noise.sizes());
  require_floating(self, "rrelu_with_noise");
  return contiguous_like(self);
}

at::Tensor logit(const at::Tensor& self, std::optional<double> /*eps*/) {
  TORCH_CHECK_NOT_IMPLEMENTED(!self.is_complex(), "\"logit\" not implemented for '", self.scalar_type(), "'");
  return pointwise_float(self);
}

int64_t half_of(const at::Tensor& self, int64_t dim) {
  TORCH_CHECK(self.dim() > 0, "glu does not support 0-dimensional tensors");
  const int64_t wrapped = c10::maybe_wrap_dim(dim, self.dim());
  TORCH_CHECK(
      self.size(wrapped) % 2 == 0,
      "Halving dimension must be even, but dimension ",
      wrapped,
      " is size ",
      self.size(wrapped));
  return wrapped;
}

at::Tensor glu_backward(const at::Tensor& /*grad_output*/, const at::Tensor& self, int64_t dim) {
  half_of(self, dim);
  return contiguous_like(self);
}

at::Tensor glu_jvp(const at::Tensor& glu, const at::Tensor& x, const at::Tensor& /*dx*/, int64_t dim) {
  half_of(x, dim);
  return strided_like(glu);
}

at::Tensor glu_backward_jvp(const at::Tensor& grad_x) {
  return strided_like(grad_x);
}

at::Tensor floor_divide(const at::Tensor& self, const at::Tensor& other) {
  at::Tensor result = pointwise(self, other);
  TORCH_CHECK_NOT_IMPLEMENTED(
      !result.is_complex() && result.scalar_type() != c10::kBool,
      "\"div_floor\" not implemented for '",
      result.scalar_type(),
      "'");
  return result;
}

at::Tensor remainder(const at::Scalar& self, const at::Tensor& other) {
  return at::remainder(number(self), other);
}

at::Tensor rsub(const at::Tensor& self, const at::Tensor& other, const at::Scalar& alpha) {
  return at::sub(other, self, alpha);
}

at::Tensor isnan(const at::Tensor& self) {
  return at::ne(self, self);
}

// Unlike add() it casts `alpha` to the dtype of the result, whatever it is.
at::Tensor add_relu(const at::Tensor& self, const at::Tensor& other, const at::Scalar& /*alpha*/) {
  at::Tensor result = pointwise(self, other);
  const c10::ScalarType dtype = result.scalar_type();
  TORCH_CHECK_NOT_IMPLEMENTED(
      c10::isIntegralType(dtype, /*includeBool=*/false) || dtype == c10::kFloat || dtype == c10::kDouble,
      "\"add_clamp\" not implemented for '",
      dtype,
      "'");
  return result;
}

at::Tensor add_relu_scalar(const at::Tensor& self, const at::Scalar& other, const at::Scalar& alpha) {
  return add_relu(self, number(other), alpha);
}

at::Tensor shift(const at::Tensor& self, const at::Tensor& other) {
  at::Tensor result = pointwise(self, other);
  TORCH_CHECK_NOT_IMPLEMENTED(
      c10::isIntegralType(result.scalar_type(), /*includeBool=*/false),
      "\"shift\" not implemented for '",
      result.scalar_type(),
      "'");
  return result;
}

at::Tensor shift_scalar(const at::Tensor& self, const at::Scalar& other) {
  return shift(self, number(other));
}

// The exponent has its own dtype, so the two outputs are laid out separately.
std::tuple<at::Tensor&, at::Tensor&> frexp_out(const at::Tensor& self, at::Tensor& mantissa, at::Tensor& exponent) {
  TORCH_CHECK(self.is_floating_point(), "torch.frexp() only supports floating-point dtypes");
  TORCH_CHECK(
      mantissa.dtype() == self.dtype(),
      "torch.frexp() expects mantissa to have dtype ",
      self.dtype(),
      " but got ",
      mantissa.dtype());
  TORCH_CHECK(
      exponent.scalar_type() == c10::kInt,
      "torch.frexp() expects exponent to have int dtype but got ",
      exponent.dtype());
  write_out(mantissa, pointwise(self), OutDtype::kSame);
  write_out(exponent, pointwise_to(c10::kInt, {self}), OutDtype::kSame);
  return {mantissa, exponent};
}

}  // namespace

KernelList activation_kernels() {
  namespace ops = at::_ops;
  return {
      kernel<ops::hardswish, &hardswish>(),
      out_form<ops::hardswish_out, ops::hardswish>(),
      in_place_form<ops::hardswish_, ops::hardswish>(),
      kernel<ops::hardswish_backward, &hardswish_backward>(),
      kernel<ops::hardtanh, &hardtanh>(),
      out_form<ops::hardtanh_out, ops::hardtanh>(),
      in_place_form<ops::hardtanh_, ops::hardtanh>(),
      kernel<ops::mish_backward, &mish_backward>(),
      kernel<ops::hardtanh_backward, &hardtanh_backward>(),
      out_form<ops::hardtanh_backward_grad_input, ops::hardtanh_backward>(),
      kernel<ops::log_sigmoid_forward, &log_sigmoid_forward>(),
      out_form<ops::log_sigmoid_forward_output, ops::log_sigmoid_forward>(),
      kernel<ops::log_sigmoid_backward, &log_sigmoid_backward>(),
      out_form<ops::log_sigmoid_backward_grad_input, ops::log_sigmoid_backward>(),
      kernel<ops::_prelu_kernel, &prelu_kernel>(),
      kernel<ops::_prelu_kernel_backward, &prelu_kernel_backward>(),
      kernel<ops::rrelu_with_noise, &rrelu_with_noise>(),
      out_form<ops::rrelu_with_noise_out, ops::rrelu_with_noise>(),
      in_place_form<ops::rrelu_with_noise_, ops::rrelu_with_noise>(),
      kernel<ops::logit, &logit>(),
      in_place_form<ops::logit_, ops::logit>(),
      kernel<ops::glu_backward, &glu_backward>(),
      out_form<ops::glu_backward_grad_input, ops::glu_backward>(OutDtype::kSame),
      kernel<ops::glu_jvp, &glu_jvp>(),
      kernel<ops::glu_backward_jvp, &glu_backward_jvp>(),
      kernel<ops::floor_divide, &floor_divide>(),
      in_place_form<ops::floor_divide__Tensor, ops::floor_divide>(),
      kernel<ops::remainder_Scalar_Tensor, &remainder>(),
      kernel<ops::rsub_Tensor, &rsub>(),
      kernel<ops::isnan, &isnan>(),
      kernel<ops::_add_relu_Tensor, &add_relu>(),
      kernel<ops::_add_relu_Scalar, &add_relu_scalar>(),
      out_form<ops::_add_relu_out, ops::_add_relu_Tensor>(),
      in_place_form<ops::_add_relu__Tensor, ops::_add_relu_Tensor>(),
      in_place_form<ops::_add_relu__Scalar, ops::_add_relu_Scalar>(),
      kernel<ops::__lshift___Tensor, &shift>(),
      kernel<ops::__lshift___Scalar, &shift_scalar>(),
      kernel<ops::__rshift___Tensor, &shift>(),
      kernel<ops::__rshift___Scalar, &shift_scalar>(),
      in_place_form<ops::__ilshift___Tensor, ops::__lshift___Tensor>(),
      in_place_form<ops::__ilshift___Scalar, ops::__lshift___Scalar>(),
      in_place_form<ops::__irshift___Tensor, ops::__rshift___Tensor>(),
      in_place_form<ops::__irshift___Scalar, ops::__rshift___Scalar>(),
      kernel<ops::frexp_Tensor_out, &frexp_out>(),
      out_form<ops::logical_not_out, ops::logical_not>(),
      out_form<ops::mvlgamma_out, ops::mvlgamma>(),
  };
}

}  // namespace torchfake
