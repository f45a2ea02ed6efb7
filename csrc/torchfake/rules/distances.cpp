// Distances between rows, norms of weights, and reductions over segments.
#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/ops/empty_like.h>

#include <torchfake/rules/forms.h>
#include <torchfake/rules/results.h>

namespace torchfake {

namespace {

using TwoTensors = std::tuple<at::Tensor, at::Tensor>;

// The broadcast batch sizes of both, with capacity for two more.
std::vector<int64_t> batch_of(const at::Tensor& x1, const at::Tensor& x2) {
  return at::infer_size(x1.sizes().slice(0, x1.dim() - 2), x2.sizes().slice(0, x2.dim() - 2));
}

at::Tensor cdist_forward(const at::Tensor& x1, const at::Tensor& x2, double p, std::optional<int64_t> compute_mode) {
  TORCH_CHECK(x1.dim() >= 2, "cdist only supports at least 2D tensors, X1 got: ", x1.dim(), "D");
  TORCH_CHECK(x2.dim() >= 2, "cdist only supports at least 2D tensors, X2 got: ", x2.dim(), "D");
  TORCH_CHECK(
      x1.size(-1) == x2.size(-1),
      "X1 and X2 must have the same number of columns. X1: ",
      x1.size(-1),
      " X2: ",
      x2.size(-1));
  TORCH_CHECK(x1.is_floating_point(), "cdist only supports floating-point dtypes, X1 got: ", x1.scalar_type());
  TORCH_CHECK(x2.is_floating_point(), "cdist only supports floating-point dtypes, X2 got: ", x2.scalar_type());
  TORCH_CHECK(p >= 0, "cdist only supports non-negative p values");
  const int64_t mode = compute_mode.value_or(0);
  TORCH_CHECK(mode >= 0 && mode <= 2, "possible modes: 0, 1, 2, but was: ", mode);
  std::vector<int64_t> sizes = batch_of(x1, x2);
  sizes.insert(sizes.end(), {x1.size(-2), x2.size(-2)});
  return empty(sizes, x1.scalar_type());
}

at::Tensor cdist_backward(const at::Tensor& /*grad*/, const at::Tensor& x1, const at::Tensor& x2) {
  std::vector<int64_t> sizes = batch_of(x1, x2);
  const bool is_empty = c10::multiply_integers(sizes) == 0 || x2.size(-2) == 0 || x1.size(-2) == 0 || x1.size(-1) == 0;
  if (is_empty) {
    return at::empty_like(x1);
  }
  sizes.insert(sizes.end(), {x1.size(-2), x1.size(-1)});
  return empty(sizes, x1.scalar_type());
}

at::Tensor pdist_forward(const at::Tensor& self) {
  const int64_t rows = self.size(0);
  return empty({rows <= 1 ? 0 : rows * (rows - 1) / 2}, self.scalar_type());
}

at::Tensor pdist_backward(const at::Tensor& /*grad*/, const at::Tensor& self) {
  return contiguous_like(self);
}

// Norms of half-precision tensors are accumulated in float.
c10::ScalarType norm_dtype(const at::Tensor& g) {
  const c10::ScalarType dtype = g.scalar_type();
  return dtype == c10::kBFloat16 || dtype == c10::kHalf ? c10::kFloat : dtype;
}

TwoTensors weight_norm(const at::Tensor& v, const at::Tensor& g, int64_t dim) {
  TORCH_CHECK(dim == 0 || dim == v.dim() - 1, "fused kernels can only be applied for first or last dim");
  if (claimed_device().is_cpu()) {
    return {contiguous_like(v), at::detail::empty_strided_meta(g.sizes(), g.strides(), norm_dtype(g))};
  }
  return {strided_like(v), strided_like(g, norm_dtype(g))};
}

TwoTensors weight_norm_backward(const at::Tensor& /*grad_w*/, const at::Tensor& v, const at::Tensor& g) {
  if (claimed_device().is_cpu()) {
    return {contiguous_like(v), contiguous_like(g)};
  }
  return {strided_like(v), strided_like(g)};
}

at::Tensor segment_reduce(
    const at::Tensor& data,
    std::string_view /*reduce*/,
    const OptTensor& lengths,
    const OptTensor& indices,
    const OptTensor& offsets,
    int64_t axis) {
  const int64_t wrapped = c10::maybe_wrap_dim(axis, data.dim());
  TORCH_CHECK(data.numel() >= 0 && data.dim() > 0, "segment_reduce(): expected data of one dimension or more");
  TORCH_CHECK(!indices, "segment_reduce(): indices based reduction is not supported yet.");
  TORCH_CHECK(lengths || offsets, "segment_reduce(): Either lengths or offsets must be defined.");
  const at::Tensor& places = lengths ? *lengths : *offsets;
  TORCH_CHECK(
      places.dim() == wrapped + 1, "segment_reduce(): Expected lengths or offsets of ", wrapped + 1, " dimensions");
  TORCH_CHECK_NOT_IMPLEMENTED(
      places.scalar_type() == c10::kLong || places.scalar_type() == c10::kInt || data.numel() == 0,
      "\"_segment_reduce_cpu\" not implemented for '",
      places.scalar_type(),
      "'");
  std::vector<int64_t> sizes = data.sizes().vec();
  sizes[wrapped] = places.size(wrapped) - (lengths ? 0 : 1);
  return empty(sizes, data.scalar_type());
}

at::Tensor segment_reduce_backward(const at::Tensor& /*grad*/, const at::Tensor& /*output*/, const at::Tensor& data) {
  return contiguous_like(data);
}

}  // namespace

KernelList distance_kernels() {
  namespace ops = at::_ops;
  return {
      kernel<ops::_cdist_forward, &cdist_forward>(),
      kernel<ops::_cdist_backward, &cdist_backward>(),
      kernel<ops::_pdist_forward, &pdist_forward>(),
      kernel<ops::_pdist_backward, &pdist_backward>(),
      kernel<ops::_weight_norm_interface, &weight_norm>(),
      kernel<ops::_weight_norm_interface_backward, &weight_norm_backward>(),
      kernel<ops::segment_reduce, &segment_reduce>(),
      kernel<ops::_segment_reduce_backward, &segment_reduce_backward>(),
  };
}

}  // namespace torchfake
