// Bags of embeddings, forward and backward.
#include <torchfake/core/compat.h>
#include <torchfake/rules/forms.h>
#include <torchfake/rules/results.h>

namespace torchfake {

namespace {

using FourTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

constexpr int64_t kSum = 0;
constexpr int64_t kMax = 2;

void check_index(const at::Tensor& tensor, const char* name) {
  TORCH_CHECK(
      tensor.scalar_type() == c10::kLong || tensor.scalar_type() == c10::kInt,
      "expected scalar type Long or Int for ",
      name,
      ", but got ",
      tensor.scalar_type());
}

void check(
    const at::Tensor& weight,
    const at::Tensor& indices,
    const at::Tensor& offsets,
    int64_t mode,
    const at::Tensor& per_sample_weights,
    bool include_last_offset) {
  TORCH_CHECK(
      indices.dim() == 1 || indices.dim() == 2,
      "input has to be a 1D or 2D Tensor, but got Tensor of dimension ",
      indices.dim());
  TORCH_CHECK(
      indices.dim() == 2 || offsets.dim() == 1,
      "offsets has to be a 1D Tensor, but got Tensor of dimension ",
      offsets.dim());
  check_index(indices, "indices");
  check_index(offsets, "offsets");
  TORCH_CHECK(weight.is_floating_point(), "expected weight to be floating point type, got ", weight.scalar_type());
  TORCH_CHECK(
      !include_last_offset || offsets.size(0) >= 1, "include_last_offset: number of offset should be at least 1");
  if (per_sample_weights.defined()) {
    TORCH_CHECK(mode == kSum, "embedding_bag: per_sample_weights only supported with mode='sum'");
    TORCH_CHECK(
        per_sample_weights.scalar_type() == weight.scalar_type(),
        "expected per_sample_weights to have the dtype of weight, ",
        weight.scalar_type(),
        ", but got ",
        per_sample_weights.scalar_type());
    TORCH_CHECK(
        per_sample_weights.dim() == 1 && per_sample_weights.numel() == indices.numel(),
        "expected per_sample_weights to be 1D, with as many elements as indices, but got ",
        per_sample_weights.sizes());
  }
}

// Whether the CPU uses a fast path that does not compute the bag of each index.
bool sums_fast(const at::Tensor& weight, const at::Tensor& per_sample_weights, int64_t padding_idx) {
  const c10::ScalarType dtype = weight.scalar_type();
  return (dtype == c10::kFloat || dtype == c10::kHalf || dtype == c10::kBFloat16) && weight.stride(1) == 1 &&
      padding_idx < 0 && (!per_sample_weights.defined() || per_sample_weights.stride(0) == 1);
}

FourTensors embedding_bag(
    const at::Tensor& weight,
    const at::Tensor& indices,
    const at::Tensor& offsets,
    int64_t mode,
    const at::Tensor& per_sample_weights,
    bool include_last_offset,
    int64_t padding_idx,
    bool for_backward) {
  check(weight, indices, offsets, mode, per_sample_weights, include_last_offset);
  TORCH_CHECK(
      !claimed_device().is_cpu() || weight.size(0) > 0 || indices.numel() == 0,
      "embedding_bag: Expected idx >= 0 && idx < num_embeddings, but there are no embeddings");
  const int64_t bags = offsets.size(0) - (include_last_offset ? 1 : 0);
  // Both are converted to the wider integer type.
  const c10::ScalarType dtype = offsets.scalar_type() == c10::kLong ? c10::kLong : indices.scalar_type();
  const at::Tensor output = empty({bags, weight.size(1)}, weight.scalar_type());
  const at::Tensor maxima = empty({bags, weight.size(1)}, dtype);
  if (!claimed_device().is_cpu()) {
    return {
        output,
        empty({indices.size(0)}, dtype),
        empty(offsets.sizes(), dtype),
        mode == kMax ? maxima : empty({0}, dtype)};
  }
  const bool knows_bags = mode != kSum || !sums_fast(weight, per_sample_weights, padding_idx);
  const at::Tensor bag_size = for_backward || mode != kSum ? empty({bags}, dtype) : empty(offsets.sizes(), dtype);
  return {
      output,
      empty({knows_bags ? indices.size(0) : 0}, dtype),
      bag_size,
      mode == kMax ? maxima : contiguous_like(bag_size)};
}

template <bool kForBackward>
FourTensors with_all_arguments(
    const at::Tensor& weight,
    const at::Tensor& indices,
    const at::Tensor& offsets,
    bool /*scale_grad_by_freq*/,
    int64_t mode,
    bool /*sparse*/,
    const OptTensor& per_sample_weights,
    bool include_last_offset,
    int64_t padding_idx) {
  return embedding_bag(
      weight, indices, offsets, mode, value(per_sample_weights), include_last_offset, padding_idx, kForBackward);
}

at::Tensor dense_backward(
    const at::Tensor& grad,
    const at::Tensor& /*indices*/,
    const at::Tensor& /*offset2bag*/,
    const at::Tensor& /*bag_size*/,
    const at::Tensor& /*maximum_indices*/,
    int64_t num_weights) {
  require_floating(grad, "embedding_bag_dense_backward");
  return empty({num_weights, grad.size(1)}, grad.scalar_type());
}

at::Tensor backward(
    const at::Tensor& grad,
    const at::Tensor& indices,
    const at::Tensor& /*offsets*/,
    const at::Tensor& offset2bag,
    const at::Tensor& bag_size,
    const at::Tensor& maximum_indices,
    int64_t num_weights,
    bool /*scale_grad_by_freq*/,
    int64_t /*mode*/,
    bool /*sparse*/) {  // sparse gradients have a rule of their own
  return dense_backward(grad, indices, offset2bag, bag_size, maximum_indices, num_weights);
}

at::Tensor per_sample_weights_backward(
    const at::Tensor& grad,
    const at::Tensor& weight,
    const at::Tensor& indices,
    const at::Tensor& /*offsets*/,
    const at::Tensor& offset2bag,
    int64_t mode) {
  TORCH_CHECK(mode == kSum, "embedding_bag_backward: per_sample_weights only supported for mode='sum'");
  TORCH_CHECK(
      grad.dim() == 2 && weight.dim() == 2 && indices.dim() == 1 && weight.size(1) == grad.size(1),
      "expected a gradient and a weight with as many columns and 1D indices, but got sizes ",
      grad.sizes(),
      ", ",
      weight.sizes(),
      " and ",
      indices.sizes());
  check_index(indices, "indices");
  if (indices.numel() == 0 || offset2bag.numel() > 0) {
    check_index(offset2bag, "offset2bag");
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      !claimed_device().is_cuda() || grad.scalar_type() != c10::kBFloat16,
      "\"_embedding_bag_per_sample_weights_backward_cuda\" not implemented for 'BFloat16'");
  return empty({indices.size(0)}, grad.scalar_type());
}

at::Tensor& renorm_rows(at::Tensor& self, const at::Tensor& indices) {
  TORCH_CHECK(
      self.dim() == 2,
      "Expected 2-dimensional tensor, but got ",
      self.dim(),
      "-dimensional tensor for argument #1 'self' (while checking arguments for embedding_renorm_)");
  TORCH_CHECK(
      indices.scalar_type() == c10::kLong || indices.scalar_type() == c10::kInt,
      "Expected tensor for argument #2 'indices' to have one of the following scalar types: Long, Int; but got ",
      indices.scalar_type(),
      " instead (while checking arguments for embedding_renorm_)");
  compat::check_dtype(
      "embedding_renorm",
      indices.numel() == 0 || self.is_floating_point() || self.is_complex(),
      "norm(): input dtype should be either floating point or complex. Got ",
      self.scalar_type(),
      " instead.");
  return self;
}

}  // namespace

KernelList embedding_kernels() {
  namespace ops = at::_ops;
  return {
      kernel<ops::embedding_renorm_, &renorm_rows>(),
      kernel<ops::_embedding_bag, &with_all_arguments<true>>(),
      kernel<ops::_embedding_bag_forward_only, &with_all_arguments<false>>(),
      kernel<ops::_embedding_bag_backward, &backward>(),
      kernel<ops::_embedding_bag_dense_backward, &dense_backward>(),
      kernel<ops::_embedding_bag_per_sample_weights_backward, &per_sample_weights_backward>(),
  };
}

}  // namespace torchfake
