// Operators on images whose kernels write to a contiguous result, whatever the input's layout; and losses like them.
#include <ATen/EmptyTensor.h>
#include <ATen/native/GridSamplerUtils.h>

#include <torchfake/rules/forms.h>
#include <torchfake/rules/results.h>

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

at::Tensor grid_sampler_3d(const at::Tensor& input, const at::Tensor& grid, int64_t interpolation_mode) {
  at::native::check_grid_sampler_common(input, grid);
  at::native::check_grid_sampler_3d(input, grid, interpolation_mode);
  return empty({input.size(0), input.size(1), grid.size(1), grid.size(2), grid.size(3)}, input.scalar_type());
}

std::tuple<at::Tensor, at::Tensor> grid_sampler_backward(
    const at::Tensor& /*grad_output*/,
    const at::Tensor& input,
    const at::Tensor& grid,
    int64_t /*interpolation_mode*/,
    int64_t /*padding_mode*/,
    bool /*align_corners*/,
    std::array<bool, 2> output_mask) {
  return {output_mask[0] ? contiguous_like(input) : at::Tensor(), contiguous_like(grid)};
}

// The CPU keeps channels-last order; a GPU rearranges a view, which not every layout has.
at::Tensor channel_shuffle(const at::Tensor& self, int64_t groups) {
  TORCH_CHECK(self.dim() > 2, "channel_shuffle expects input with > 2 dims, but got input with sizes ", self.sizes());
  TORCH_CHECK(groups > 0, "Number of groups to divide channels in must be positive. Value of groups:", groups);
  TORCH_CHECK(
      self.size(1) % groups == 0,
      "Number of channels must be divisible by groups. Got ",
      self.size(1),
      " channels and ",
      groups,
      " groups.");
  if (self.numel() == 0) {
    return self.alias();
  }
  if (claimed_device().is_cpu()) {
    return formatted_like(self);
  }
  self.view({self.size(0), groups, self.size(1) / groups, -1});
  return contiguous_like(self);
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
  namespace ops = at::_ops;
  return {
      kernel<ops::grid_sampler_3d, &grid_sampler_3d>(),
      kernel<ops::grid_sampler_2d_backward, &grid_sampler_backward>(),
      kernel<ops::grid_sampler_3d_backward, &grid_sampler_backward>(),
      kernel<ops::channel_shuffle, &channel_shuffle>(),
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
