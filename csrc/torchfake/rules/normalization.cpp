// Layer and batch normalisation: the saved statistics differ between the CPU and the GPUs.
#include <ATen/AccumulateType.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/native/Resize.h>
#include <ATen/native/cpu/mixed_data_type.h>
#include <ATen/native/layer_norm.h>
#include <ATen/ops/_fused_rms_norm_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/empty_like.h>

#include <torchfake/rules/forms.h>
#include <torchfake/rules/results.h>

namespace torchfake {

bool cudnn_normalizes(const at::Tensor& input, const at::Tensor& weight) {
  return input.scalar_type() != c10::kBFloat16 && weight.defined() && weight.scalar_type() != c10::kBFloat16 &&
      (input.scalar_type() != c10::kHalf || weight.scalar_type() == c10::kFloat);
}

namespace {

using TwoTensors = std::tuple<at::Tensor, at::Tensor>;
using ThreeTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

// The dtype of saved statistics: a GPU keeps them in the type it accumulates in; the CPU in that of the parameters,
// which may be float for inputs of lower precision.
template <typename... Params>
c10::ScalarType statistics_dtype(const at::Tensor& input, const Params&... params) {
  if (!claimed_device().is_cpu()) {
    return at::toAccumulateType(input.scalar_type(), /*is_cuda=*/true);
  }
  const bool mixed = at::native::is_mixed_type(input, params...);
  if (mixed) {
    at::native::check_mixed_data_type(input, params...);
  }
  return at::native::param_scalar_type(input, mixed);
}

// One for each of what is normalised together.
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
    const OptTensor& bias,
    double /*eps*/) {
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

void check_size(const at::Tensor& tensor, int64_t expected, const char* name) {
  TORCH_CHECK(
      !tensor.defined() || tensor.numel() == expected,
      name,
      " should contain ",
      expected,
      " elements not ",
      tensor.defined() ? tensor.numel() : 0);
}

void check_vectors(const at::Tensor& running_mean, const at::Tensor& running_var) {
  for (const at::Tensor& running : {running_mean, running_var}) {
    TORCH_CHECK(
        !running.defined() || running.dim() == 1, "TensorAccessor expected 1 dims but tensor has ", running.dim());
  }
}

ThreeTensors batch_norm(
    const at::Tensor& input,
    const at::Tensor& weight,
    const at::Tensor& bias,
    const at::Tensor& running_mean,
    const at::Tensor& running_var,
    bool training,
    bool keeps_strides) {
  TORCH_CHECK_INDEX(input.dim() >= 2, "Dimension out of range (expected an input of 2 dimensions or more)");
  TORCH_CHECK(
      training || (running_mean.defined() && running_var.defined()),
      "Expected running_mean and running_var to be defined when training=False");
  TORCH_CHECK(
      input.numel() > 0 || !training || !claimed_device().is_cpu(),
      "input tensor must have at least one element, but got input_sizes = ",
      input.sizes());
  const int64_t channels = input.size(1);
  check_size(running_mean, channels, "running_mean");
  check_size(running_var, channels, "running_var");
  check_size(weight, channels, "weight");
  check_size(bias, channels, "bias");
  check_vectors(running_mean, running_var);
  const c10::ScalarType dtype = statistics_dtype(input, weight, bias, running_mean, running_var);
  const bool on_cpu = claimed_device().is_cpu();
  if (!on_cpu && training && running_mean.defined() && running_var.defined()) {
    at::assert_no_internal_overlap(running_mean);
    at::assert_no_internal_overlap(running_var);
  }
  const at::Tensor output =
      at::empty_like(input, keeps_strides ? at::MemoryFormat::Preserve : input.suggest_memory_format());
  // In evaluation the CPU saves nothing.
  const int64_t saved = on_cpu && !training ? 0 : channels;
  return {output, empty({saved}, dtype), empty({saved}, dtype)};
}

ThreeTensors native_batch_norm(
    const at::Tensor& input,
    const OptTensor& weight,
    const OptTensor& bias,
    const OptTensor& running_mean,
    const OptTensor& running_var,
    bool training,
    double /*momentum*/,
    double /*eps*/) {
  return batch_norm(
      input,
      value(weight),
      value(bias),
      value(running_mean),
      value(running_var),
      training,
      /*keeps_strides=*/!claimed_device().is_cpu());
}

ThreeTensors native_batch_norm_legit(
    const at::Tensor& input,
    const OptTensor& weight,
    const OptTensor& bias,
    at::Tensor& running_mean,
    at::Tensor& running_var,
    bool training,
    double /*momentum*/,
    double /*eps*/) {
  return batch_norm(input, value(weight), value(bias), running_mean, running_var, training, !claimed_device().is_cpu());
}

ThreeTensors native_batch_norm_no_stats(
    const at::Tensor& input,
    const OptTensor& weight,
    const OptTensor& bias,
    bool training,
    double /*momentum*/,
    double /*eps*/) {
  return batch_norm(input, value(weight), value(bias), {}, {}, training, !claimed_device().is_cpu());
}

// The CPU writes statistics of one dtype alone.
void check_statistic(const at::Tensor& out, const at::Tensor& result, size_t index) {
  TORCH_CHECK(
      index == 0 || out.scalar_type() == result.scalar_type(),
      "expected scalar type ",
      result.scalar_type(),
      " but found ",
      out.scalar_type());
}

// In evaluation the CPU saves no statistics, and leaves the arguments for them as they come. The kernels of a GPU that are
// made for contiguous inputs write statistics of one dtype alone.
void write_batch_norm(const OutRule::Tensors& outs, const OutRule::Tensors& results) {
  const bool on_cpu = claimed_device().is_cpu();
  for (size_t i = 0; i < outs.size(); ++i) {
    if (!on_cpu) {
      write_out(outs[i], results[i], i > 0 && results[0].is_contiguous() ? OutDtype::kSame : OutDtype::kCastable);
    } else if (i == 0 || results[i].numel() > 0) {
      check_statistic(outs[i], results[i], i);
      at::native::resize_output(outs[i], results[i].sizes());
    } else {
      TORCH_CHECK(outs[i].dim() == 1, "TensorAccessor expected 1 dims but tensor has ", outs[i].dim());
    }
  }
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> batch_norm_with_update(
    const at::Tensor& input,
    const OptTensor& weight,
    const OptTensor& bias,
    at::Tensor& running_mean,
    at::Tensor& running_var,
    double /*momentum*/,
    double /*eps*/) {
  const bool by_cudnn = claimed_device().is_cuda() && cudnn_normalizes(input, value(weight));
  TORCH_CHECK(!claimed_device().is_cuda() || input.numel() > 0, "cuDNN error: CUDNN_STATUS_BAD_PARAM");
  TORCH_CHECK(
      !by_cudnn || input.is_contiguous(input.suggest_memory_format()),
      "Expected input->is_contiguous(input->suggest_memory_format()) to be true, but got false.");
  auto [output, mean, var] = batch_norm(
      input,
      value(weight),
      value(bias),
      running_mean,
      running_var,
      /*training=*/true,
      /*keeps_strides=*/claimed_device().is_cuda() && !by_cudnn);
  return {output, mean, var, empty({0}, c10::kByte)};
}

// The real kernels take them as they come, and read beyond the end of those that are too short.
void check_statistics(const at::Tensor& input, const OptTensor& mean, const OptTensor& deviation, const char* which) {
  if (input.numel() == 0) {
    return;
  }
  TORCH_CHECK(
      value(mean).defined() && value(deviation).defined(),
      "the backward of batch normalisation needs ",
      which,
      ": pass those that the forward was given or returned");
  check_size(*mean, input.size(1), which);
  check_size(*deviation, input.size(1), which);
}

ThreeTensors native_batch_norm_backward(
    const at::Tensor& grad_out,
    const at::Tensor& input,
    const OptTensor& weight,
    const OptTensor& running_mean,
    const OptTensor& running_var,
    const OptTensor& save_mean,
    const OptTensor& save_invstd,
    bool train,
    double /*eps*/,
    std::array<bool, 3> output_mask) {
  TORCH_CHECK_INDEX(input.dim() >= 2, "Dimension out of range (expected an input of 2 dimensions or more)");
  TORCH_CHECK(
      grad_out.sizes() == input.sizes(),
      "expected a gradient of the input's size ",
      input.sizes(),
      ", but got ",
      grad_out.sizes());
  TORCH_CHECK(
      !claimed_device().is_cpu() || grad_out.scalar_type() == input.scalar_type(),
      "expected scalar type ",
      input.scalar_type(),
      " but found ",
      grad_out.scalar_type());
  check_size(value(weight), input.size(1), "weight");
  if (train) {
    check_statistics(input, save_mean, save_invstd, "save_mean and save_invstd");
  } else {
    check_statistics(input, running_mean, running_var, "running_mean and running_var");
  }
  const bool in_rows = !train && !claimed_device().is_cpu();
  const auto format = in_rows ? at::MemoryFormat::Contiguous : input.suggest_memory_format();
  const c10::ScalarType dtype = weight && weight->defined() ? weight->scalar_type() : input.scalar_type();
  const auto per_channel = [&](bool wanted) { return wanted ? empty({input.size(1)}, dtype) : at::Tensor(); };
  return {
      output_mask[0] ? at::empty_like(input, format) : at::Tensor(),
      per_channel(output_mask[1]),
      per_channel(output_mask[2])};
}

// In evaluation, with nothing to keep for the backward.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> batch_norm_no_update(
    const at::Tensor& input,
    const OptTensor& weight,
    const OptTensor& bias,
    const OptTensor& running_mean,
    const OptTensor& running_var) {
  auto [output, mean, var] = batch_norm(
      input,
      value(weight),
      value(bias),
      value(running_mean),
      value(running_var),
      /*training=*/false,
      /*keeps_strides=*/!claimed_device().is_cpu());
  return {output, mean, var, empty({0}, c10::kByte)};
}

ThreeTensors batch_norm_backward(
    const at::Tensor& grad_out,
    const at::Tensor& input,
    const at::Tensor& weight,
    const OptTensor& running_mean,
    const OptTensor& running_var,
    const OptTensor& save_mean,
    const OptTensor& save_var,
    bool update,
    double eps,
    std::array<bool, 3> output_mask) {
  return torchfake::native_batch_norm_backward(
      grad_out, input, weight, running_mean, running_var, save_mean, save_var, update, eps, output_mask);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> cudnn_batch_norm(
    const at::Tensor& input,
    const at::Tensor& weight,
    const OptTensor& /*bias*/,
    const OptTensor& /*running_mean*/,
    const OptTensor& /*running_var*/,
    bool training) {
  const int64_t saved = training ? weight.numel() : 0;
  return {
      formatted_like(input),
      empty({saved}, weight.scalar_type()),
      empty({saved}, weight.scalar_type()),
      empty({0}, c10::kByte)};
}

ThreeTensors cudnn_batch_norm_backward(
    const at::Tensor& input,
    const at::Tensor& /*grad_output*/,
    const at::Tensor& weight,
    const OptTensor& /*running_mean*/,
    const OptTensor& /*running_var*/,
    const OptTensor& save_mean,
    const OptTensor& save_var) {
  check_statistics(input, save_mean, save_var, "save_mean and save_var");
  return {formatted_like(input), contiguous_like(weight), contiguous_like(weight)};
}

// Batch normalisation over several GPUs, step by step.
at::Tensor per_channel(const at::Tensor& input) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !claimed_device().is_cpu(), "Could not run 'aten::batch_norm_stats' with arguments from the 'CPU' backend.");
  return empty({input.size(1)}, at::toAccumulateType(input.scalar_type(), /*is_cuda=*/true));
}

TwoTensors batch_norm_stats(const at::Tensor& input) {
  return {per_channel(input), per_channel(input)};
}

// The one of them that the CPU has, which keeps them in the dtype of what is updated.
TwoTensors batch_norm_update_stats(
    const at::Tensor& input,
    const OptTensor& running_mean,
    const OptTensor& running_var) {
  check_vectors(value(running_mean), value(running_var));
  const c10::ScalarType dtype = statistics_dtype(input, value(running_mean), value(running_var));
  return {empty({input.size(1)}, dtype), empty({input.size(1)}, dtype)};
}

at::Tensor batch_norm_elemt(const at::Tensor& input) {
  return formatted_like(input);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> batch_norm_backward_reduce(
    const at::Tensor& /*grad_out*/,
    const at::Tensor& input,
    const at::Tensor& mean,
    const at::Tensor& /*invstd*/,
    const OptTensor& weight,
    bool input_g,
    bool weight_g,
    bool bias_g) {
  const c10::ScalarType dtype = weight ? weight->scalar_type() : mean.scalar_type();
  return {
      input_g ? contiguous_like(mean) : at::Tensor(),
      input_g ? contiguous_like(mean) : at::Tensor(),
      weight_g ? empty({input.size(1)}, dtype) : at::Tensor(),
      bias_g ? empty({input.size(1)}, dtype) : at::Tensor()};
}

at::Tensor batch_norm_backward_elemt(const at::Tensor& /*grad_out*/, const at::Tensor& input) {
  return formatted_like(input);
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
  const auto format = claimed_device().is_cpu() ? input.suggest_memory_format() : at::MemoryFormat::Contiguous;
  TORCH_CHECK(
      input.is_contiguous(format),
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
      output_mask[0] ? (claimed_device().is_cpu() ? formatted_like(input) : contiguous_like(input)) : at::Tensor(),
      parameter(output_mask[1]),
      parameter(output_mask[2])};
}

// The kernel of a GPU; other devices compose it.
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
  return {
      out_form<ops::_batch_norm_with_update_out, ops::_batch_norm_with_update>(),
      kernel<ops::_batch_norm_no_update, &batch_norm_no_update>(),
      kernel<ops::batch_norm_backward, &batch_norm_backward>(),
      kernel<ops::cudnn_batch_norm, &cudnn_batch_norm>(),
      kernel<ops::cudnn_batch_norm_backward, &cudnn_batch_norm_backward>(),
      kernel<ops::batch_norm_stats, &batch_norm_stats>(),
      kernel<ops::batch_norm_update_stats, &batch_norm_update_stats>(),
      kernel<ops::batch_norm_gather_stats, &batch_norm_stats>(),
      kernel<ops::batch_norm_gather_stats_with_counts, &batch_norm_stats>(),
      kernel<ops::batch_norm_elemt, &batch_norm_elemt>(),
      kernel<ops::batch_norm_backward_reduce, &batch_norm_backward_reduce>(),
      kernel<ops::batch_norm_backward_elemt, &batch_norm_backward_elemt>(),
      kernel<ops::native_group_norm, &native_group_norm>(),
      kernel<ops::native_group_norm_backward, &native_group_norm_backward>(),
      kernel<ops::_fused_rms_norm, &fused_rms_norm>(),
      kernel<ops::_fused_rms_norm_backward, &fused_rms_norm_backward>(),
      native_kernel<decltype(native_layer_norm), &native_layer_norm>("aten::native_layer_norm"),
      native_kernel<decltype(native_layer_norm_backward), &native_layer_norm_backward>(
          "aten::native_layer_norm_backward"),
      native_kernel<decltype(native_batch_norm), &native_batch_norm>("aten::native_batch_norm"),
      native_kernel<decltype(native_batch_norm_legit), &native_batch_norm_legit>("aten::_native_batch_norm_legit"),
      native_kernel<decltype(native_batch_norm_no_stats), &native_batch_norm_no_stats>(
          "aten::_native_batch_norm_legit.no_stats"),
      out_form<ops::native_batch_norm_out, ops::native_batch_norm>(&write_batch_norm),
      out_form<ops::_native_batch_norm_legit_out, ops::_native_batch_norm_legit>(&write_batch_norm),
      out_form<ops::_native_batch_norm_legit_no_stats_out, ops::_native_batch_norm_legit_no_stats>(&write_batch_norm),
      native_kernel<decltype(native_batch_norm_backward), &native_batch_norm_backward>(
          "aten::native_batch_norm_backward"),
      native_kernel<decltype(batch_norm_with_update), &batch_norm_with_update>("aten::_batch_norm_with_update"),
  };
}

}  // namespace torchfake
