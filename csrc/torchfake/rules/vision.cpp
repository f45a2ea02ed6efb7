// Operators on images whose kernels write to a contiguous result, whatever the input's layout; and losses like them.
#include <ATen/EmptyTensor.h>
#include <ATen/native/GridSamplerUtils.h>

#include <torchfake/rules/kernels.h>

namespace torchfake {

namespace {

at::Tensor grid_sampler_2d(
    const at::Tensor& input,
    const at::Tensor& grid,
    int64_t /*interpolation_mode*/,
    int64_t /*padding_mode*/,
    bool /*align_corners*/) {
  at::native::check_grid_sampler_common(input, grid);
  at::native::check_grid_sampler_2d(input, grid);
  return at::detail::empty_meta({input.size(0), input.size(1), grid.size(1), grid.size(2)}, input.scalar_type());
}

at::Tensor mse_loss_backward(
    const at::Tensor& /*grad_output*/,
    const at::Tensor& self,
    const at::Tensor& /*target*/,
    int64_t /*reduction*/) {
  return at::detail::empty_meta(self.sizes(), self.scalar_type());
}

// The libraries have kernels of their own for some sizes; they are not modelled.
bool use_cudnn_ctc_loss(
    const at::Tensor& /*log_probs*/,
    const at::Tensor& /*targets*/,
    c10::IntArrayRef /*input_lengths*/,
    c10::IntArrayRef /*target_lengths*/,
    int64_t /*blank*/) {
  return false;
}

bool use_cudnn_ctc_loss_tensor(
    const at::Tensor& /*log_probs*/,
    const at::Tensor& /*targets*/,
    const at::Tensor& /*input_lengths*/,
    const at::Tensor& /*target_lengths*/,
    int64_t /*blank*/) {
  return false;
}

}  // namespace

KernelList vision_kernels() {
  return {
      native_kernel<decltype(grid_sampler_2d), &grid_sampler_2d>("aten::grid_sampler_2d"),
      native_kernel<decltype(mse_loss_backward), &mse_loss_backward>("aten::mse_loss_backward"),
      native_kernel<decltype(use_cudnn_ctc_loss), &use_cudnn_ctc_loss>("aten::_use_cudnn_ctc_loss"),
      native_kernel<decltype(use_cudnn_ctc_loss_tensor), &use_cudnn_ctc_loss_tensor>(
          "aten::_use_cudnn_ctc_loss.Tensor"),
      native_kernel<decltype(use_cudnn_ctc_loss), &use_cudnn_ctc_loss>("aten::_use_miopen_ctc_loss"),
      native_kernel<decltype(use_cudnn_ctc_loss_tensor), &use_cudnn_ctc_loss_tensor>(
          "aten::_use_miopen_ctc_loss.Tensor"),
  };
}

}  // namespace torchfake
