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
  return at::detail::empty_meta(
      {input.size(0), input.size(1), grid.size(1), grid.size(2)}, input.scalar_type());
}

at::Tensor mse_loss_backward(
    const at::Tensor& /*grad_output*/,
    const at::Tensor& self,
    const at::Tensor& /*target*/,
    int64_t /*reduction*/) {
  return at::detail::empty_meta(self.sizes(), self.scalar_type());
}

}  // namespace

KernelList vision_kernels() {
  return {
      native_kernel<decltype(grid_sampler_2d), &grid_sampler_2d>("aten::grid_sampler_2d"),
      native_kernel<decltype(mse_loss_backward), &mse_loss_backward>("aten::mse_loss_backward"),
  };
}

}  // namespace torchfake
