// Rules for decompositions that call another kernel where a library (cuDNN, the CPU's loops) is present.
#include <ATen/ops/cudnn_batch_norm.h>
#include <ATen/ops/cudnn_grid_sampler.h>
#include <ATen/ops/max_pool1d_with_indices.h>

#include <torchfake/core/kernel_environment.h>
#include <torchfake/rules/attention.h>
#include <torchfake/rules/composites.h>
#include <torchfake/rules/cudnn_recurrent.h>
#include <torchfake/rules/onednn_recurrent.h>
#include <torchfake/rules/results.h>

#include <limits>

namespace torchfake {

namespace {

namespace ops = at::_ops;

// max_pool1d(self, kernel_size, stride, padding, dilation, ceil_mode). On the CPU, without gradients, it loops over the
// data.
bool max_pool1d(const Call& call) {
  const at::Tensor self = call.arg(0).toTensor();
  if (!self.is_cpu() ||
      (KernelEnvironment::requires_grad(self) && KernelEnvironment::enabled(KernelEnvironment::kGradMode)) ||
      self._fw_grad(0).defined()) {
    return false;
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      self.is_floating_point() && !c10::isFloat8Type(self.scalar_type()),
      "\"max_pool1d_impl\" not implemented for '",
      self.scalar_type(),
      "'");
  const auto numbers = [&](size_t arg) { return call.arg(arg).toIntVector(); };
  at::Tensor pooled = std::get<0>(at::max_pool1d_with_indices(
      self.dim() == 2 ? self.unsqueeze(0) : self,
      numbers(1),
      numbers(2),
      numbers(3),
      numbers(4),
      call.arg(5).toBool()));
  pooled = pooled.clone(at::MemoryFormat::Contiguous);  // not a view, unlike the squeezed result
  if (self.dim() == 2) {
    pooled.squeeze_(0);
  }
  answer_with(call, std::move(pooled));
  return true;
}

// grid_sampler(input, grid, interpolation_mode, padding_mode, align_corners): cuDNN supports bilinear, zeros, aligned
// corners.
bool grid_sampler(const Call& call) {
  const at::Tensor input = call.arg(0).toTensor();
  const at::Tensor grid = call.arg(1).toTensor();
  const auto has_dtype = [](const at::Tensor& tensor) {
    const c10::ScalarType dtype = tensor.scalar_type();
    return dtype == c10::kDouble || dtype == c10::kFloat || dtype == c10::kHalf;
  };
  const auto is_small = [](const at::Tensor& tensor) {
    return tensor.sym_numel() <= std::numeric_limits<int32_t>::max();
  };
  const bool asked = call.arg(2).toInt() == 0 && call.arg(3).toInt() == 0 && call.arg(4).toBool();
  if (!asked || !input.is_cuda() || !grid.is_cuda() || !KernelEnvironment::enabled(KernelEnvironment::kCudnn) ||
      !has_dtype(input) || !has_dtype(grid) || input.sym_numel() == 0 || grid.sym_numel() == 0 || !is_small(input) ||
      !is_small(grid) || input.dim() != 4 || input.sym_size(1) > 1024) {
    return false;
  }
  answer_with(call, at::cudnn_grid_sampler(input, grid));
  return true;
}

// batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled): a PyTorch with
// CUDA dispatches to cuDNN if cuDNN supports the inputs.
bool batch_norm(const Call& call) {
  const at::Tensor input = call.arg(0).toTensor();
  const auto tensor = [&](size_t arg) { return call.arg(arg).toOptional<at::Tensor>(); };
  const auto defined = [&](size_t arg) { return value(tensor(arg)).defined(); };
  const at::Tensor weight = value(tensor(1));
  const bool training = call.arg(5).toBool();
  constexpr double kLeastEps = 1e-5;
  const bool has_statistics = defined(3) && defined(4);
  if (!input.is_cuda() || input.dim() < 3 || input.sym_numel() == 0 || !weight.defined() || !defined(2) ||
      !cudnn_normalizes(input, weight) || !(has_statistics || (!defined(3) && !defined(4) && training)) ||
      input.sym_size(0) > (training ? 880801 : 65535) || call.arg(7).toDouble() < kLeastEps || !call.arg(8).toBool()) {
    return false;
  }
  auto outputs = at::cudnn_batch_norm(
      input.contiguous(input.suggest_memory_format()),
      weight,
      tensor(2),
      tensor(3),
      tensor(4),
      training,
      call.arg(6).toDouble(),
      call.arg(7).toDouble());
  answer_with(call, std::get<0>(outputs));
  return true;
}

bool lstm(const Call& call) {
  return onednn_lstm(call) || cudnn_recurrent<Cudnn::kLstm, false>(call);
}
bool of_symbols_or_devices(c10::DispatchKeySet keys) {
  return of_fakes_on_devices(keys) || of_symbols(keys);
}

}  // namespace

CompositeList library_composites() {
  return {
      &composite<&max_pool1d, &of_fakes, ops::max_pool1d>,
      &composite<&grid_sampler, &of_fakes_on_devices, ops::grid_sampler>,
      &composite<&batch_norm, &of_fakes_on_devices, ops::batch_norm>,
      &composite<&scaled_dot_product_attention, &of_fakes_on_devices, ops::scaled_dot_product_attention>,
      &composite<&lstm, &of_symbols_or_devices, ops::lstm_input>,
      &composite<&cudnn_recurrent<Cudnn::kGru, false>, &of_fakes_on_devices, ops::gru_input>,
      &composite<&cudnn_recurrent<Cudnn::kRnnTanh, false>, &of_fakes_on_devices, ops::rnn_tanh_input>,
      &composite<&cudnn_recurrent<Cudnn::kRnnRelu, false>, &of_fakes_on_devices, ops::rnn_relu_input>,
  };
}

}  // namespace torchfake
