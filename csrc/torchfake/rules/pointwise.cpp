// Pointwise operators without a structured kernel: TensorIterator decides the layout, as it does for real.
#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/TensorIterator.h>
#include <ATen/ops/clamp_min_meta_dispatch.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/result_type.h>

#include <torchfake/rules/kernels.h>

namespace torchfake {

namespace {

// What a pointwise kernel of `dtype` returns for these inputs.
at::Tensor result_of(std::initializer_list<at::Tensor> inputs, c10::ScalarType dtype, const at::Tensor& out = {}) {
  at::TensorIteratorConfig config;
  config.set_check_mem_overlap(true).check_all_same_dtype(false).check_all_same_device(false);
  config.add_owned_output(out);
  for (const at::Tensor& input : inputs) {
    config.add_owned_const_input(input);
  }
  if (!out.defined()) {
    config.declare_static_dtype_and_device(dtype, c10::Device(c10::kMeta));
  }
  return config.build().output();
}

c10::ScalarType real_dtype(c10::ScalarType dtype) {
  return c10::isComplexType(dtype) ? c10::toRealValueType(dtype) : dtype;
}

at::Tensor abs(const at::Tensor& self) {
  return result_of({self}, real_dtype(self.scalar_type()));
}

at::Tensor& abs_(at::Tensor& self) {
  TORCH_CHECK(!self.is_complex(), "In-place abs is not supported for complex tensors.");
  result_of({self}, self.scalar_type(), self);
  return self;
}

at::Tensor angle(const at::Tensor& self) {
  const c10::ScalarType dtype = self.scalar_type();
  if (self.is_complex()) {
    return at::detail::empty_meta(self.sizes(), real_dtype(dtype));  // copied out of a complex result
  }
  const bool integral = c10::isIntegralType(dtype, /*includeBool=*/true);
  return result_of({self}, integral ? c10::get_default_dtype_as_scalartype() : real_dtype(dtype));
}

at::Tensor logical_not(const at::Tensor& self) {
  return result_of({self}, c10::kBool);
}

at::Tensor logical_binary(const at::Tensor& self, const at::Tensor& other) {
  return result_of({self, other}, c10::kBool);
}

at::Tensor& logical_binary_out(const at::Tensor& self, const at::Tensor& other, at::Tensor& out) {
  result_of({self, other}, c10::kBool, out);
  return out;
}

at::Tensor nan_to_num(
    const at::Tensor& self,
    std::optional<double> /*nan*/,
    std::optional<double> /*posinf*/,
    std::optional<double> /*neginf*/) {
  return result_of({self}, self.scalar_type());
}

at::Tensor where(const at::Tensor& condition, const at::Tensor& self, const at::Tensor& other) {
  TORCH_CHECK(
      condition.scalar_type() == c10::kBool || condition.scalar_type() == c10::kByte,
      "where expected condition to be a boolean tensor, but got a tensor with dtype ",
      condition.scalar_type());
  return result_of({condition, self, other}, at::result_type(self, other));
}

// complex(real, imag) and polar(abs, angle)
at::Tensor complex_of(const at::Tensor& first, const at::Tensor& second) {
  const c10::ScalarType dtype = first.scalar_type();
  TORCH_CHECK(
      dtype == c10::kFloat || dtype == c10::kDouble || dtype == c10::kHalf,
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
  return result_of({first, second}, c10::toComplexType(dtype));
}

// The CPU multiplies, and promotes.
at::Tensor native_dropout_backward(const at::Tensor& grad_output, const at::Tensor& mask, double scale) {
  if (claimed_device().is_cpu()) {
    return at::mul(at::mul(grad_output, mask), scale);
  }
  TORCH_CHECK(mask.scalar_type() == c10::kBool, "Mask should be Bool Scalar Type ", mask.scalar_type());
  return result_of({grad_output, mask}, grad_output.scalar_type());
}

at::Tensor relu(const at::Tensor& self) {
  TORCH_CHECK(self.scalar_type() != c10::kBool, "Boolean inputs not supported for relu");
  return at::meta::clamp_min(self, 0);
}

at::Tensor& relu_(at::Tensor& self) {
  TORCH_CHECK(self.scalar_type() != c10::kBool, "Boolean inputs not supported for relu");
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
      native_kernel<at::Tensor(const at::Tensor&), &angle>("aten::angle"),
      native_kernel<at::Tensor(const at::Tensor&), &logical_not>("aten::logical_not"),
      native_kernel<at::Tensor(const at::Tensor&, const at::Tensor&), &logical_binary>("aten::logical_and"),
      native_kernel<at::Tensor(const at::Tensor&, const at::Tensor&), &logical_binary>("aten::logical_or"),
      native_kernel<at::Tensor(const at::Tensor&, const at::Tensor&), &logical_binary>("aten::logical_xor"),
      native_kernel<decltype(logical_binary_out), &logical_binary_out>("aten::logical_and.out"),
      native_kernel<decltype(logical_binary_out), &logical_binary_out>("aten::logical_or.out"),
      native_kernel<decltype(logical_binary_out), &logical_binary_out>("aten::logical_xor.out"),
      native_kernel<decltype(nan_to_num), &nan_to_num>("aten::nan_to_num"),
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
