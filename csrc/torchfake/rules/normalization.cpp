// Layer, group and RMS normalisation.
#include <ATen/native/layer_norm.h>
#include <ATen/ops/_fused_rms_norm_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <torchfake/core/compat.h>
#include <torchfake/rules/forms.h>
#include <torchfake/rules/norm_statistics.h>

namespace torchfake {

namespace {

// One statistic per normalised group.
std::vector<int64_t> row_statistics(const at::Tensor& input, c10::IntArrayRef normalized_shape) {
  const size_t axis = static_cast<size_t>(input.dim()) - normalized_shape.size();
  std::vector<int64_t> sizes(input.sizes().begin(), input.sizes().begin() + static_cast<ptrdiff_t>(axis));
  sizes.resize(static_cast<size_t>(input.dim()), 1);
  return sizes;
}

ThreeTensors native_layer_norm(
    const at::Tensor& input,
    c10::IntArrayRef normalized_shape,
    const OptTensor& weight,
    const OptTensor& bias) {
  at::native::_check_layer_norm_inputs(input, normalized_shape, value(weight), value(bias));
  const std::vector<int64_t> statistics = row_statistics(input, normalized_shape);
  const c10::ScalarType dtype = statistics_dtype(input, value(weight), value(bias));
  return {contiguous_like(input), empty(statistics, dtype), empty(statistics, dtype)};
}

ThreeTensors native_layer_norm_backward(
    const at::Tensor& /*grad_out*/,
    const at::Tensor& input,
    c10::IntArrayRef normalized_shape,
    const at::Tensor& /*mean*/,
    const at::Tensor& /*rstd*/,
    const OptTensor& weight,
    const OptTensor& bias,
    std::array<bool, 3> output_mask) {
  at::native::_check_layer_norm_inputs(input, normalized_shape, value(weight), value(bias));
  return {
      output_mask[0] ? contiguous_like(input) : at::Tensor(),
      output_mask[1] && weight ? contiguous_like(*weight) : at::Tensor(),
      output_mask[2] && bias ? contiguous_like(*bias) : at::Tensor()};
}

void check_channels(const OptTensor& parameter, int64_t channels, const char* name) {
  TORCH_CHECK(
      !parameter || !parameter->defined() || (parameter->dim() == 1 && parameter->numel() == channels),
      "Expected ",
      name,
      " to be a vector of size equal to the number of channels in input, but got ",
      name,
      " of shape ",
      parameter->sizes(),
      " and ",
      channels,
      " channels");
}

void check_groups(int64_t channels, int64_t group) {
  TORCH_CHECK(group > 0, "Expected num groups to be greater than 0, got ", group);
  TORCH_CHECK(
      channels % group == 0,
      "Expected number of channels in input to be divisible by num_groups, but got ",
      channels,
      " channels and num_groups=",
      group);
}

at::MemoryFormat group_norm_format(const at::Tensor& input) {
  const c10::Device device = claimed_device();
  const bool keeps = device.is_cpu() || (device.is_cuda() && compat::kGroupNormTakesAnyStrides);
  return keeps ? input.suggest_memory_format() : at::MemoryFormat::Contiguous;
}

ThreeTensors native_group_norm(
    const at::Tensor& input,
    const OptTensor& weight,
    const OptTensor& bias,
    int64_t batch,
    int64_t channels,
    int64_t pixels,
    int64_t group) {
  check_channels(weight, channels, "weight");
  check_channels(bias, channels, "bias");
  check_groups(channels, group);
  TORCH_CHECK(
      input.numel() == batch * channels * pixels,
      "Expected X.numel() == N * C * HxW to be true, but got ",
      input.sizes(),
      " for ",
      batch,
      ", ",
      channels,
      " and ",
      pixels);
  const at::MemoryFormat format = group_norm_format(input);
  TORCH_CHECK(
      compat::kGroupNormTakesAnyStrides || input.is_contiguous(format),
      "Expected X.is_contiguous(memory_format) to be true, but got false.  (Could this error message be improved?  If "
      "so, please report an enhancement request to PyTorch.)");
  const OptTensor& parameter = weight ? weight : bias;
  const bool mixed = parameter && parameter->defined() && parameter->scalar_type() != input.scalar_type();
  TORCH_CHECK(
      !mixed || !claimed_device().is_cpu() || c10::isReducedFloatingType(input.scalar_type()),
      "mixed dtype (CPU): all inputs must share same datatype.");
  const auto statistics = input.options().dtype(mixed ? c10::kFloat : input.scalar_type());
  return {
      at::empty_like(input, input.options().memory_format(format)),
      at::empty({batch, group}, statistics),
      at::empty({batch, group}, statistics)};
}

ThreeTensors native_group_norm_backward(
    const at::Tensor& /*grad_out*/,
    const at::Tensor& input,
    const at::Tensor& /*mean*/,
    const at::Tensor& /*rstd*/,
    const OptTensor& weight,
    int64_t /*batch*/,
    int64_t channels,
    int64_t /*pixels*/,
    int64_t group,
    std::array<bool, 3> output_mask) {
  check_groups(channels, group);
  const auto parameter = [&](bool wanted) { return wanted && weight ? contiguous_like(*weight) : at::Tensor(); };
  return {
      output_mask[0] ? at::empty_like(input, input.options().memory_format(group_norm_format(input))) : at::Tensor(),
      parameter(output_mask[1]),
      parameter(output_mask[2])};
}

// A GPU has a kernel for it; other devices run the composite.
TwoTensors fused_rms_norm(
    const at::Tensor& input,
    c10::IntArrayRef normalized_shape,
    const OptTensor& weight,
    std::optional<double> eps) {
  if (!claimed_device().is_cuda()) {
    return at::compositeimplicitautograd::_fused_rms_norm(input, normalized_shape, weight, eps);
  }
  at::native::_check_rms_norm_inputs_symint(input, c10::fromIntArrayRefSlow(normalized_shape), value(weight));
  TORCH_CHECK(
      !weight || !weight->defined() || weight->scalar_type() == input.scalar_type(),
      "expected scalar type ",
      input.scalar_type(),
      " but found ",
      weight->scalar_type());
  return {contiguous_like(input), empty(row_statistics(input, normalized_shape), statistics_dtype(input))};
}

TwoTensors fused_rms_norm_backward(
    const at::Tensor& /*grad_out*/,
    const at::Tensor& input,
    c10::IntArrayRef /*normalized_shape*/,
    const at::Tensor& /*rstd*/,
    const OptTensor& weight,
    std::array<bool, 2> output_mask) {
  return {
      output_mask[0] ? contiguous_like(input) : at::Tensor(),
      output_mask[1] && weight ? contiguous_like(*weight) : at::Tensor()};
}

}  // namespace

KernelList normalization_kernels() {
  namespace ops = at::_ops;
  KernelList kernels = {
      kernel<ops::native_group_norm, &native_group_norm>(),
      kernel<ops::native_group_norm_backward, &native_group_norm_backward>(),
      kernel<ops::_fused_rms_norm, &fused_rms_norm>(),
      kernel<ops::_fused_rms_norm_backward, &fused_rms_norm_backward>(),
      kernel<ops::native_layer_norm, &native_layer_norm>(),
      kernel<ops::native_layer_norm_backward, &native_layer_norm_backward>(),
  };
  const KernelList of_batches = batch_norm_kernels();
  kernels.insert(kernels.end(), of_batches.begin(), of_batches.end());
  return kernels;
}

}  // namespace torchfake
