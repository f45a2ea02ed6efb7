// Variance and standard deviation: reductions without a structured kernel.
#include <ATen/EmptyTensor.h>
#include <ATen/ops/sum_meta_dispatch.h>

#include <torchfake/core/compat.h>
#include <torchfake/rules/kernels.h>

namespace torchfake {

namespace {

// A reduction has the layout of a sum; the variance of complex numbers is real.
at::Tensor reduced(const at::Tensor& self, at::OptionalIntArrayRef dim, bool keepdim, bool keeps_complex) {
  compat::check_dtype(
      "var",
      self.is_floating_point() || self.is_complex(),
      "std and var only support floating point and complex dtypes");
  const at::Tensor sum = at::meta::sum(self, dim, keepdim);
  const c10::ScalarType dtype = self.scalar_type();
  const bool to_real = self.is_complex() && !keeps_complex;
  return at::detail::empty_strided_meta(sum.sizes(), sum.strides(), to_real ? c10::toRealValueType(dtype) : dtype);
}

at::Tensor var(
    const at::Tensor& self,
    at::OptionalIntArrayRef dim,
    const std::optional<at::Scalar>& /*correction*/,
    bool keepdim) {
  return reduced(self, dim, keepdim, /*keeps_complex=*/false);
}

std::tuple<at::Tensor, at::Tensor> var_mean(
    const at::Tensor& self,
    at::OptionalIntArrayRef dim,
    const std::optional<at::Scalar>& /*correction*/,
    bool keepdim) {
  return {reduced(self, dim, keepdim, /*keeps_complex=*/false), reduced(self, dim, keepdim, /*keeps_complex=*/true)};
}

}  // namespace

KernelList reduction_kernels() {
  using One = at::Tensor(const at::Tensor&, at::OptionalIntArrayRef, const std::optional<at::Scalar>&, bool);
  using Two = std::tuple<at::Tensor, at::Tensor>(
      const at::Tensor&, at::OptionalIntArrayRef, const std::optional<at::Scalar>&, bool);
  return {
      native_kernel<One, &var>("aten::var.correction"),
      native_kernel<One, &var>("aten::std.correction"),
      native_kernel<Two, &var_mean>("aten::var_mean.correction"),
      native_kernel<Two, &var_mean>("aten::std_mean.correction"),
  };
}

}  // namespace torchfake
