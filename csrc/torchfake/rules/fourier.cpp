// Fourier transforms: the library transforms a batch, and the strides of the result depend on how the batch was formed.
#include <ATen/EmptyTensor.h>
#include <ATen/WrapDimUtilsMulti.h>
#include <ATen/ops/_fft_c2c.h>

#include <torchfake/core/compat.h>
#include <torchfake/rules/forms.h>

#include <algorithm>
#include <numeric>

namespace torchfake {

namespace {

using Dims = c10::SmallVector<int64_t, 5>;

// Requires valid and distinct dimensions; the code below relies on this.
void check_dims(const at::Tensor& self, c10::IntArrayRef dims) {
  for (const int64_t dim : dims) {
    TORCH_CHECK_INDEX(
        0 <= dim && dim < self.dim(),
        "Dimension out of range (expected to be in range of [0, ",
        self.dim() - 1,
        "], but got ",
        dim,
        ')');
  }
  at::dim_list_to_bitset(dims, self.dim());  // throws on a repeated dimension
}

// Sorts the dimensions by decreasing stride, optionally keeping the last one last.
Dims by_stride(const at::Tensor& self, c10::IntArrayRef dims, bool keep_last) {
  Dims sorted(dims.begin(), dims.end());
  const c10::IntArrayRef strides = self.strides();
  std::sort(sorted.begin(), sorted.end() - (keep_last ? 1 : 0), [&](int64_t a, int64_t b) {
    return strides[a] > strides[b];
  });
  return sorted;
}

// The result of a transform over `dims`: dense in memory, with the batch dimensions first, ordered by the input's
// strides, then the transformed ones.
at::Tensor transformed(
    const at::Tensor& self,
    c10::IntArrayRef out_sizes,
    c10::IntArrayRef dims,
    c10::ScalarType dtype) {
  const int64_t ndim = self.dim();
  Dims order(ndim);
  std::iota(order.begin(), order.end(), 0);
  const auto is_batch = [&](int64_t d) { return std::find(dims.begin(), dims.end(), d) == dims.end(); };
  const auto batch_end = std::partition(order.begin(), order.end(), is_batch);
  const c10::IntArrayRef strides = self.strides();
  std::sort(order.begin(), batch_end, [&](int64_t a, int64_t b) { return strides[a] > strides[b]; });
  std::copy(dims.begin(), dims.end(), batch_end);
  Dims out_strides(ndim);
  int64_t stride = 1;
  for (auto d = order.rbegin(); d != order.rend(); ++d) {
    out_strides[*d] = stride;
    stride *= std::max<int64_t>(out_sizes[*d], 1);
  }
  return at::detail::empty_strided_meta(out_sizes, out_strides, dtype);
}

// Whether a GPU transforms all dimensions at once. Otherwise, and on the CPU for complex-to-real, it transforms one by
// one.
bool at_once_on_gpu(c10::IntArrayRef dim) {
  return !claimed_device().is_cpu() && dim.size() <= 3 && !(dim.size() >= 2 && dim[0] == 0 && dim[1] == 1);
}

void check_not_empty(const at::Tensor& self) {
  TORCH_CHECK(!claimed_device().is_cuda() || self.numel() > 0, "cuFFT error: CUFFT_INVALID_SIZE");
}

at::Tensor fft_c2c(const at::Tensor& self, c10::IntArrayRef dim, int64_t /*normalization*/, bool /*forward*/) {
  TORCH_CHECK(self.is_complex(), "expected a complex input");
  check_dims(self, dim);
  if (dim.empty()) {
    return self.clone();
  }
  check_not_empty(self);
  return transformed(self, self.sizes(), by_stride(self, dim, /*keep_last=*/false), self.scalar_type());
}

at::Tensor fft_r2c(const at::Tensor& self, c10::IntArrayRef dim, int64_t /*normalization*/, bool onesided) {
  compat::check_dtype("_fft_r2c", self.is_floating_point(), "expected a real input");
  TORCH_CHECK(!dim.empty(), "expected at least one dimension to transform");
  check_dims(self, dim);
  check_not_empty(self);
  std::vector<int64_t> sizes = self.sizes().vec();
  if (onesided) {
    sizes[dim.back()] = sizes[dim.back()] / 2 + 1;
  }
  const c10::ScalarType dtype = c10::toComplexType(self.scalar_type());
  if (claimed_device().is_cpu() || at_once_on_gpu(dim)) {
    return transformed(self, sizes, by_stride(self, dim, /*keep_last=*/true), dtype);
  }
  const at::Tensor last = transformed(self, sizes, dim.slice(dim.size() - 1), dtype);
  const c10::IntArrayRef rest = dim.slice(0, dim.size() - 1);
  return rest.empty() ? last : transformed(last, sizes, by_stride(last, rest, /*keep_last=*/false), dtype);
}

// The library requires both sizes to be equal, or one to be the non-redundant half of the other.
void check_last_size(int64_t frequencies, int64_t size) {
  const auto [small, large] = std::minmax(frequencies, size);
  TORCH_CHECK(
      size >= 1 && (small == large || small == large / 2 + 1),
      "Invalid number of data points (",
      size,
      ") for ",
      frequencies,
      " frequencies");
}

// Over several dimensions: a complex transform over all but the last, then complex-to-real over that one. A GPU
// overwrites its input, so it works on a contiguous copy unless the complex transform has created one.
at::Tensor fft_c2r(const at::Tensor& self, c10::IntArrayRef dim, int64_t normalization, int64_t last_dim_size) {
  TORCH_CHECK(self.is_complex(), "expected a complex input");
  TORCH_CHECK(!dim.empty(), "expected at least one dimension to transform");
  check_dims(self, dim);
  check_last_size(self.size(dim.back()), last_dim_size);
  check_not_empty(self);
  const c10::ScalarType dtype = c10::toRealValueType(self.scalar_type());
  std::vector<int64_t> sizes = self.sizes().vec();
  sizes[dim.back()] = last_dim_size;
  if (at_once_on_gpu(dim) || (!claimed_device().is_cpu() && dim.size() == 1)) {
    return transformed(at::detail::empty_meta(self.sizes(), self.scalar_type()), sizes, dim, dtype);
  }
  const at::Tensor input =
      dim.size() > 1 ? fft_c2c(self, dim.slice(0, dim.size() - 1), normalization, /*forward=*/false) : self;
  return transformed(input, sizes, dim.slice(dim.size() - 1), dtype);
}

// The result is copied. A GPU scales it in the same step, and an argument that is resized takes its strides.
void write_transformed(const OutRule::Tensors& outs, const OutRule::Tensors& results) {
  if (claimed_device().is_cuda()) {
    write_out(outs[0], results[0], OutDtype::kCastable);
  } else {
    write_copy(outs, results);
  }
}

at::Tensor& fft_r2c_out(
    const at::Tensor& self,
    c10::IntArrayRef dim,
    int64_t normalization,
    bool onesided,
    at::Tensor& out) {
  const at::Tensor result = fft_r2c(self, dim, normalization, onesided);
  // For a two-sided result one half of `out` is written and the other is filled from it.
  (onesided ? write_transformed : write_copy)({out}, {result});
  return out;
}

}  // namespace

KernelList fourier_kernels() {
  namespace ops = at::_ops;
  return {
      kernel<ops::_fft_c2c, &fft_c2c>(),
      out_form<ops::_fft_c2c_out, ops::_fft_c2c>(&write_transformed),
      kernel<ops::_fft_r2c, &fft_r2c>(),
      kernel<ops::_fft_r2c_out, &fft_r2c_out>(),
      kernel<ops::_fft_c2r, &fft_c2r>(),
      out_form<ops::_fft_c2r_out, ops::_fft_c2r>(&write_transformed),
  };
}

}  // namespace torchfake
