// Variance, standard deviation and the k-th value: reductions without a structured kernel.
#include <ATen/EmptyTensor.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/native/ReduceOpsUtils.h>
#include <ATen/ops/sum_meta_dispatch.h>

#include <torchfake/rules/kernels.h>

namespace torchfake {

namespace {

// A reduction lays out its result as a sum does; of complex numbers the variance is real.
at::Tensor reduced(const at::Tensor& self, at::OptionalIntArrayRef dim, bool keepdim, bool keeps_complex) {
  TORCH_CHECK(
      self.is_floating_point() || self.is_complex(), "std and var only support floating point and complex dtypes");
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

std::tuple<at::Tensor&, at::Tensor&> kthvalue_out(
    const at::Tensor& self,
    int64_t k,
    int64_t dim,
    bool keepdim,
    at::Tensor& values,
    at::Tensor& indices) {
  dim = at::maybe_wrap_dim(dim, self.dim());
  at::native::zero_numel_check_dims(self, dim, "kthvalue()");
  at::assert_no_overlap(values, self);
  TORCH_CHECK(k >= 1 && k <= at::native::ensure_nonempty_size(self, dim), "selected index k out of range");
  TORCH_CHECK(
      values.scalar_type() == self.scalar_type() && indices.scalar_type() == c10::kLong,
      "kthvalue(): expected values of ",
      self.scalar_type(),
      " and indices of Long, got ",
      values.scalar_type(),
      " and ",
      indices.scalar_type());
  std::vector<int64_t> sizes = self.sizes().vec();
  if (!sizes.empty()) {
    if (keepdim) {
      sizes[dim] = 1;
    } else {
      sizes.erase(sizes.begin() + dim);
    }
  }
  values.resize_(sizes);
  indices.resize_(sizes);
  return {values, indices};
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
      native_kernel<decltype(kthvalue_out), &kthvalue_out>("aten::kthvalue.values"),
  };
}

}  // namespace torchfake
