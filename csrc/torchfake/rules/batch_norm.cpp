// Batch normalisation, on one device and across several.
#include <ATen/MemoryOverlap.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty_like.h>

#include <torchfake/rules/forms.h>
#include <torchfake/rules/norm_statistics.h>

namespace torchfake {

bool cudnn_normalizes(const at::Tensor& input, const at::Tensor& weight) {
  return input.scalar_type() != c10::kBFloat16 && weight.defined() && weight.scalar_type() != c10::kBFloat16 &&
      (input.scalar_type() != c10::kHalf || weight.scalar_type() == c10::kFloat);
}

namespace {

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
  // In evaluation the CPU saves no statistics.
  const int64_t saved = on_cpu && !training ? 0 : channels;
  return {output, empty({saved}, dtype), empty({saved}, dtype)};
}

ThreeTensors native_batch_norm(
    const at::Tensor& input,
    const OptTensor& weight,
    const OptTensor& bias,
    const OptTensor& running_mean,
    const OptTensor& running_var,
    bool training) {
  TORCH_CHECK_VALUE(
      value(running_mean).defined() == value(running_var).defined(),
      "running_mean and running_var must either both be None or neither be None");
  return batch_norm(
      input,
      value(weight),
      value(bias),
      value(running_mean),
      value(running_var),
      training,
      /*keeps_strides=*/!claimed_device().is_cpu());
}

ThreeTensors native_batch_norm_no_stats(
    const at::Tensor& input,
    const OptTensor& weight,
    const OptTensor& bias,
    bool training) {
  return batch_norm(input, value(weight), value(bias), {}, {}, training, !claimed_device().is_cpu());
}

// The CPU writes statistics of a single dtype.
void check_statistic(const at::Tensor& out, const at::Tensor& result, size_t index) {
  TORCH_CHECK(
      index == 0 || out.scalar_type() == result.scalar_type(),
      "expected scalar type ",
      result.scalar_type(),
      " but found ",
      out.scalar_type());
}

// In evaluation the CPU saves no statistics and leaves the arguments for them unchanged. GPU kernels for contiguous
// inputs write statistics of a single dtype.
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

// The CPU leaves the last argument, which is for what cuDNN reserves, unchanged.
void write_batch_norm_with_update(const OutRule::Tensors& outs, const OutRule::Tensors& results) {
  if (claimed_device().is_cpu()) {
    return write_batch_norm({outs.begin(), outs.end() - 1}, results);
  }
  for (size_t i = 0; i < outs.size(); ++i) {
    write_out(outs[i], results[i], OutDtype::kCastable);
  }
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> batch_norm_with_update(
    const at::Tensor& input,
    const OptTensor& weight,
    const OptTensor& bias,
    const at::Tensor& running_mean,
    const at::Tensor& running_var) {
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

// The real kernels do not check these, and read out of bounds if they are too short.
void check_statistics(const at::Tensor& input, const OptTensor& mean, const OptTensor& deviation, const char* which) {
  if (input.numel() == 0) {
    return;
  }
  const std::array<at::Tensor, 2> statistics = {value(mean), value(deviation)};
  TORCH_CHECK(
      statistics[0].defined() && statistics[1].defined(),
      "the backward of batch normalisation needs ",
      which,
      ": pass those that the forward was given or returned");
  for (const at::Tensor& statistic : statistics) {
    check_size(statistic, input.size(1), which);
  }
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

// Evaluation, with nothing saved for the backward.
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

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> cudnn_batch_norm(
    const at::Tensor& input,
    const at::Tensor& weight,
    const OptTensor& bias,
    const OptTensor& running_mean,
    const OptTensor& running_var,
    bool training) {
  TORCH_CHECK(input.dim() >= 2, "cudnn_batch_norm: expected an input of 2 dimensions or more, got ", input.dim());
  const auto check = [&](const at::Tensor& tensor, bool is_needed, const char* which) {
    TORCH_CHECK(!is_needed || tensor.defined(), "cudnn_batch_norm: expected a tensor for '", which, "', got None");
    check_size(tensor, input.size(1), which);
  };
  check(weight, true, "weight");
  check(value(bias), true, "bias");
  check(value(running_mean), !training, "running_mean");
  check(value(running_var), !training, "running_var");
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

// Batch normalisation across several GPUs, step by step.
at::Tensor per_channel(const at::Tensor& input) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !claimed_device().is_cpu(), "Could not run 'aten::batch_norm_stats' with arguments from the 'CPU' backend.");
  return empty({input.size(1)}, at::toAccumulateType(input.scalar_type(), /*is_cuda=*/true));
}

TwoTensors batch_norm_stats(const at::Tensor& input) {
  return {per_channel(input), per_channel(input)};
}

// The only one of them with a CPU kernel, which stores the statistics in the dtype of the running ones.
TwoTensors batch_norm_update_stats(
    const at::Tensor& input,
    const OptTensor& running_mean,
    const OptTensor& running_var) {
  check_vectors(value(running_mean), value(running_var));
  const c10::ScalarType dtype = statistics_dtype(input, value(running_mean), value(running_var));
  return {empty({input.size(1)}, dtype), empty({input.size(1)}, dtype)};
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

}  // namespace

KernelList batch_norm_kernels() {
  namespace ops = at::_ops;
  return {
      out_form<ops::_batch_norm_with_update_out, ops::_batch_norm_with_update>(&write_batch_norm_with_update),
      kernel<ops::_batch_norm_no_update, &batch_norm_no_update>(),
      kernel<ops::batch_norm_backward, &native_batch_norm_backward>(),
      kernel<ops::cudnn_batch_norm, &cudnn_batch_norm>(),
      kernel<ops::cudnn_batch_norm_backward, &cudnn_batch_norm_backward>(),
      kernel<ops::batch_norm_stats, &batch_norm_stats>(),
      kernel<ops::batch_norm_update_stats, &batch_norm_update_stats>(),
      kernel<ops::batch_norm_gather_stats, &batch_norm_stats>(),
      kernel<ops::batch_norm_gather_stats_with_counts, &batch_norm_stats>(),
      kernel<ops::batch_norm_elemt, &formatted_like>(),
      kernel<ops::batch_norm_backward_reduce, &batch_norm_backward_reduce>(),
      kernel<ops::batch_norm_backward_elemt, &batch_norm_backward_elemt>(),
      kernel<ops::native_batch_norm, &native_batch_norm>(),
      kernel<ops::_native_batch_norm_legit, &native_batch_norm>(),
      kernel<ops::_native_batch_norm_legit_no_stats, &native_batch_norm_no_stats>(),
      out_form<ops::native_batch_norm_out, ops::native_batch_norm>(&write_batch_norm),
      out_form<ops::_native_batch_norm_legit_out, ops::_native_batch_norm_legit>(&write_batch_norm),
      out_form<ops::_native_batch_norm_legit_no_stats_out, ops::_native_batch_norm_legit_no_stats>(&write_batch_norm),
      kernel<ops::native_batch_norm_backward, &native_batch_norm_backward>(),
      kernel<ops::_batch_norm_with_update, &batch_norm_with_update>(),
  };
}

}  // namespace torchfake
