// Pointwise operators without a structured kernel: TensorIterator determines the layout, as in the real kernels.
#include <ATen/ExpandUtils.h>
#include <ATen/TensorIterator.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/clamp_min_meta_dispatch.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/result_type.h>

#include <torchfake/core/compat.h>
#include <torchfake/core/kernel_environment.h>
#include <torchfake/rules/kernels.h>
#include <torchfake/rules/results.h>

namespace torchfake {

namespace {

// Writes to `out`, which TensorIterator resizes.
at::Tensor& iterate_into(at::Tensor& out, std::initializer_list<at::Tensor> inputs) {
  at::TensorIteratorConfig config;
  config.set_check_mem_overlap(true).check_all_same_dtype(false).check_all_same_device(false);
  config.add_owned_output(out);
  for (const at::Tensor& input : inputs) {
    config.add_owned_const_input(input);
  }
  config.build();
  return out;
}

// The same for a kernel that computes in `dtype`.
at::Tensor& write_to(at::Tensor& out, std::initializer_list<at::Tensor> inputs, c10::ScalarType dtype) {
  check_castable(dtype, out.scalar_type());
  return iterate_into(out, inputs);
}

c10::ScalarType real_dtype(c10::ScalarType dtype) {
  return c10::isComplexType(dtype) ? c10::toRealValueType(dtype) : dtype;
}

at::Tensor abs(const at::Tensor& self) {
  return pointwise_to(real_dtype(self.scalar_type()), {self});
}

// For a complex input the kernel computes a complex result first and copies it.
at::Tensor& write_real_part_to(at::Tensor& out, const at::Tensor& self, c10::ScalarType dtype) {
  if (self.is_complex() && !out.is_complex()) {
    at::native::resize_output(out, self.sizes());
    return out;
  }
  return write_to(out, {self}, dtype);
}

at::Tensor& abs_out(const at::Tensor& self, at::Tensor& out) {
  return write_real_part_to(out, self, real_dtype(self.scalar_type()));
}

at::Tensor& abs_(at::Tensor& self) {
  TORCH_CHECK(!self.is_complex(), "In-place abs is not supported for complex tensors.");
  return iterate_into(self, {self});
}

c10::ScalarType angle_dtype(const at::Tensor& self) {
  const c10::ScalarType dtype = self.scalar_type();
  const bool integral = c10::isIntegralType(dtype, /*includeBool=*/true);
  return integral ? KernelEnvironment::default_dtype() : real_dtype(dtype);
}

at::Tensor angle(const at::Tensor& self) {
  return self.is_complex() ? contiguous_like(self, angle_dtype(self)) : pointwise_to(angle_dtype(self), {self});
}

at::Tensor& angle_out(const at::Tensor& self, at::Tensor& out) {
  return write_real_part_to(out, self, angle_dtype(self));
}

at::Tensor& conj_physical_out(const at::Tensor& self, at::Tensor& out) {
  return write_to(out, {self}, self.scalar_type());
}

at::Tensor& conj_physical_(at::Tensor& self) {
  return self.is_complex() ? write_to(self, {self}, self.scalar_type()) : self;
}

at::Tensor& logit_out(const at::Tensor& self, std::optional<double> /*eps*/, at::Tensor& out) {
  const bool integral = c10::isIntegralType(self.scalar_type(), /*includeBool=*/true);
  return write_to(out, {self}, integral ? KernelEnvironment::default_dtype() : self.scalar_type());
}

at::Tensor& floor_divide_out(const at::Tensor& self, const at::Tensor& other, at::Tensor& out) {
  return write_to(out, {self, other}, at::result_type(self, other));
}

at::Tensor logical_not(const at::Tensor& self) {
  return pointwise_to(c10::kBool, {self});
}

at::Tensor logical_binary(const at::Tensor& self, const at::Tensor& other) {
  return pointwise_to(c10::kBool, {self, other});
}

at::Tensor& logical_binary_out(const at::Tensor& self, const at::Tensor& other, at::Tensor& out) {
  return iterate_into(out, {self, other});
}

at::Tensor nan_to_num(
    const at::Tensor& self,
    std::optional<double> /*nan*/,
    std::optional<double> /*posinf*/,
    std::optional<double> /*neginf*/) {
  return pointwise_to(self.scalar_type(), {self});
}

// Integers are copied unchanged: in place, nothing is written.
at::Tensor& nan_to_num_out(
    const at::Tensor& self,
    std::optional<double> /*nan*/,
    std::optional<double> /*posinf*/,
    std::optional<double> /*neginf*/,
    at::Tensor& out) {
  TORCH_CHECK(
      self.scalar_type() == out.scalar_type(),
      "nan_to_num: dtype of out: ",
      out.scalar_type(),
      " should be same as input: ",
      self.scalar_type());
  if (!c10::isIntegralType(self.scalar_type(), /*includeBool=*/true)) {
    return iterate_into(out, {self});
  }
  at::native::resize_output(out, self.sizes());
  return out.is_same(self) ? out : out.copy_(self);
}

void check_condition(const at::Tensor& condition) {
  TORCH_CHECK(
      condition.scalar_type() == c10::kBool || condition.scalar_type() == c10::kByte,
      "where expected condition to be a boolean tensor, but got a tensor with dtype ",
      condition.scalar_type());
}

at::Tensor where(const at::Tensor& condition, const at::Tensor& self, const at::Tensor& other) {
  check_condition(condition);
  return pointwise_to(at::result_type(self, other), {condition, self, other});
}

at::Tensor& where_out(const at::Tensor& condition, const at::Tensor& self, const at::Tensor& other, at::Tensor& out) {
  const c10::ScalarType dtype = at::result_type(self, other);
  TORCH_CHECK(out.scalar_type() == dtype, "Expected out type to be ", dtype, " but got ", out.scalar_type());
  check_condition(condition);
  return write_to(out, {condition, self, other}, dtype);
}

// The result dtype of complex(real, imag) and polar(abs, angle).
c10::ScalarType complex_dtype(const at::Tensor& first, const at::Tensor& second) {
  const c10::ScalarType dtype = first.scalar_type();
  const auto is_accepted = [](const at::Tensor& part) {
    const c10::ScalarType type = part.scalar_type();
    return type == c10::kFloat || type == c10::kDouble || type == c10::kHalf;
  };
  compat::check_dtype(
      "complex",
      is_accepted(first) && is_accepted(second),
      "Expected both inputs to be Half, Float or Double tensors but got ",
      dtype,
      " and ",
      second.scalar_type());
  TORCH_CHECK(
      dtype == second.scalar_type(),
      "Expected object of scalar type ",
      dtype,
      " but got scalar type ",
      second.scalar_type(),
      " for second argument");
  return c10::toComplexType(dtype);
}

at::Tensor complex_of(const at::Tensor& first, const at::Tensor& second) {
  return pointwise_to(complex_dtype(first, second), {first, second});
}

at::Tensor& complex_out(const at::Tensor& first, const at::Tensor& second, at::Tensor& out) {
  const c10::ScalarType dtype = complex_dtype(first, second);
  TORCH_CHECK(
      out.scalar_type() == dtype,
      "Expected object of scalar type ",
      dtype,
      " but got scalar type ",
      out.scalar_type(),
      " for argument 'out'");
  return write_to(out, {first, second}, dtype);
}

at::Tensor& addr_out(
    const at::Tensor& self,
    const at::Tensor& vec1,
    const at::Tensor& vec2,
    const at::Scalar& /*beta*/,
    const at::Scalar& /*alpha*/,
    at::Tensor& out) {
  TORCH_CHECK(
      vec1.dim() == 1 && vec2.dim() == 1,
      "addr: Expected 1-D argument vec1 and vec2 tensors, but got ",
      vec1.dim(),
      "-D and ",
      vec2.dim(),
      "-D");
  const at::Tensor matrix = self.expand({vec1.size(0), vec2.size(0)});
  const c10::ScalarType vectors = at::result_type(vec1, vec2);
  return write_to(out, {matrix, vec1.unsqueeze(1), vec2}, c10::promoteTypes(self.scalar_type(), vectors));
}

// The backward of smooth_l1_loss and huber_loss.
at::Tensor& loss_backward_out(
    const at::Tensor& grad_output,
    const at::Tensor& self,
    const at::Tensor& target,
    int64_t /*reduction*/,
    double /*beta*/,
    at::Tensor& grad_input) {
  return write_to(grad_input, {self, target, grad_output}, at::result_type(self, target));
}

// The CPU kernel is a multiplication with type promotion.
at::Tensor native_dropout_backward(const at::Tensor& grad_output, const at::Tensor& mask, double scale) {
  if (claimed_device().is_cpu()) {
    return at::mul(at::mul(grad_output, mask), scale);
  }
  TORCH_CHECK(mask.scalar_type() == c10::kBool, "Mask should be Bool Scalar Type ", mask.scalar_type());
  return formatted_like(grad_output);
}

at::Tensor relu(const at::Tensor& self) {
  compat::check_dtype("relu", self.scalar_type() != c10::kBool, "Boolean inputs not supported for relu");
  return at::meta::clamp_min(self, 0);
}

at::Tensor& relu_(at::Tensor& self) {
  compat::check_dtype("relu", self.scalar_type() != c10::kBool, "Boolean inputs not supported for relu");
  return at::meta::clamp_min_(self, 0);
}

at::Tensor& copy_(at::Tensor& self, const at::Tensor& src, bool /*non_blocking*/) {
  if (self.is_same(src)) {
    return self;
  }
  at::TensorIteratorConfig()
      .add_output(self)
      .add_const_input(src)
      .resize_outputs(false)
      .check_all_same_dtype(false)
      .check_all_same_device(false)
      .build();
  return self;
}

}  // namespace

KernelList pointwise_kernels() {
  return {
      native_kernel<at::Tensor(const at::Tensor&), &abs>("aten::abs"),
      native_kernel<at::Tensor&(at::Tensor&), &abs_>("aten::abs_"),
      native_kernel<decltype(abs_out), &abs_out>("aten::abs.out"),
      native_kernel<at::Tensor(const at::Tensor&), &angle>("aten::angle"),
      native_kernel<decltype(angle_out), &angle_out>("aten::angle.out"),
      native_kernel<decltype(conj_physical_out), &conj_physical_out>("aten::conj_physical.out"),
      native_kernel<decltype(conj_physical_), &conj_physical_>("aten::conj_physical_"),
      native_kernel<decltype(logit_out), &logit_out>("aten::logit.out"),
      native_kernel<decltype(floor_divide_out), &floor_divide_out>("aten::floor_divide.out"),
      native_kernel<decltype(where_out), &where_out>("aten::where.self_out"),
      native_kernel<decltype(complex_out), &complex_out>("aten::complex.out"),
      native_kernel<decltype(complex_out), &complex_out>("aten::polar.out"),
      native_kernel<decltype(addr_out), &addr_out>("aten::addr.out"),
      native_kernel<decltype(loss_backward_out), &loss_backward_out>("aten::smooth_l1_loss_backward.grad_input"),
      native_kernel<decltype(loss_backward_out), &loss_backward_out>("aten::huber_loss_backward.out"),
      native_kernel<at::Tensor(const at::Tensor&), &logical_not>("aten::logical_not"),
      native_kernel<at::Tensor(const at::Tensor&, const at::Tensor&), &logical_binary>("aten::logical_and"),
      native_kernel<at::Tensor(const at::Tensor&, const at::Tensor&), &logical_binary>("aten::logical_or"),
      native_kernel<at::Tensor(const at::Tensor&, const at::Tensor&), &logical_binary>("aten::logical_xor"),
      native_kernel<decltype(logical_binary_out), &logical_binary_out>("aten::logical_and.out"),
      native_kernel<decltype(logical_binary_out), &logical_binary_out>("aten::logical_or.out"),
      native_kernel<decltype(logical_binary_out), &logical_binary_out>("aten::logical_xor.out"),
      native_kernel<decltype(nan_to_num), &nan_to_num>("aten::nan_to_num"),
      native_kernel<decltype(nan_to_num_out), &nan_to_num_out>("aten::nan_to_num.out"),
      native_kernel<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&), &where>("aten::where.self"),
      native_kernel<at::Tensor(const at::Tensor&, const at::Tensor&), &complex_of>("aten::complex"),
      native_kernel<at::Tensor(const at::Tensor&, const at::Tensor&), &complex_of>("aten::polar"),
      native_kernel<decltype(native_dropout_backward), &native_dropout_backward>("aten::native_dropout_backward"),
      native_kernel<at::Tensor(const at::Tensor&), &relu>("aten::relu"),
      native_kernel<at::Tensor&(at::Tensor&), &relu_>("aten::relu_"),
      native_kernel<at::Tensor&(at::Tensor&, const at::Tensor&, bool), &copy_>("aten::copy_"),
  };
}

}  // namespace torchfake
