// Image operators: whether the result is contiguous or keeps the input's memory format.
#include <ATen/EmptyTensor.h>
#include <ATen/native/GridSamplerUtils.h>
#include <ATen/native/PixelShuffle.h>
#include <ATen/ops/pixel_shuffle_compositeexplicitautogradnonfunctional_dispatch.h>
#include <ATen/ops/pixel_unshuffle_compositeexplicitautogradnonfunctional_dispatch.h>

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

// The CPU's fallback kernels, for images whose offsets exceed 32 bits, only read float32.
void check_for_fallback(const at::Tensor& input, const at::Tensor& grid, const at::Tensor& grad_output = {}) {
  at::native::check_grid_sampler_common(input, grid);
  at::native::check_grid_sampler_2d(input, grid);
  for (const at::Tensor& tensor : {input, grid, grad_output}) {
    TORCH_CHECK(
        input.numel() == 0 || grid.numel() == 0 || !tensor.defined() || tensor.scalar_type() == c10::kFloat,
        "expected scalar type Float but found ",
        c10::toString(tensor.scalar_type()));
  }
}

at::Tensor grid_sampler_fallback(const at::Tensor& input, const at::Tensor& grid) {
  check_for_fallback(input, grid);
  return empty({input.size(0), input.size(1), grid.size(1), grid.size(2)}, input.scalar_type());
}

std::tuple<at::Tensor, at::Tensor> grid_sampler_fallback_backward(
    const at::Tensor& grad_output,
    const at::Tensor& input,
    const at::Tensor& grid) {
  check_for_fallback(input, grid, grad_output);
  return {contiguous_like(input), contiguous_like(grid)};
}

at::Tensor cudnn_grid_sampler(const at::Tensor& input, const at::Tensor& grid) {
  TORCH_CHECK(
      input.scalar_type() == grid.scalar_type(),
      "Expected tensor for argument #1 'input' to have the same type as tensor for argument #2 'grid'; but type ",
      input.toString(),
      " does not equal ",
      grid.toString(),
      " (while checking arguments for cudnn_grid_sampler)");
  return grid_sampler_2d(input, grid, 0, 0, true);
}

std::tuple<at::Tensor, at::Tensor> cudnn_grid_sampler_backward(const at::Tensor& input, const at::Tensor& grid) {
  return {contiguous_like(input), contiguous_like(grid)};
}

// Sizes with the last three (channels, height, width) replaced.
std::vector<int64_t> with_image(const at::Tensor& self, int64_t channels, int64_t height, int64_t width) {
  std::vector<int64_t> sizes(self.sizes().begin(), self.sizes().end() - 3);
  sizes.insert(sizes.end(), {channels, height, width});
  return sizes;
}

at::Tensor pixel_shuffle(const at::Tensor& self, int64_t factor) {
  if (!claimed_device().is_cpu()) {
    return at::compositeexplicitautogradnonfunctional::pixel_shuffle(self, factor);
  }
  at::native::check_pixel_shuffle_shapes(self, factor);
  return formatted(
      with_image(self, self.size(-3) / factor / factor, self.size(-2) * factor, self.size(-1) * factor), self);
}

at::Tensor pixel_unshuffle(const at::Tensor& self, int64_t factor) {
  if (!claimed_device().is_cpu()) {
    return at::compositeexplicitautogradnonfunctional::pixel_unshuffle(self, factor);
  }
  at::native::check_pixel_unshuffle_shapes(self, factor);
  if (self.numel() == 0) {
    return self.clone();  // with its own sizes: the real kernel does not rearrange an empty input
  }
  return formatted(
      with_image(self, self.size(-3) * factor * factor, self.size(-2) / factor, self.size(-1) / factor), self);
}

at::Tensor channel_shuffle(const at::Tensor& self, int64_t groups) {
  TORCH_CHECK(self.dim() > 2, "channel_shuffle expects input with > 2 dims, but got input with sizes ", self.sizes());
  TORCH_CHECK(groups > 0, "Number of groups to divide channels in must be positive. Value of groups:", groups);
  const int64_t channels = self.size(1);
  TORCH_CHECK(
      channels % groups == 0,
      "Number of channels must be divisible by groups. Got ",
      channels,
      " channels and ",
      groups,
      " groups.");
  if (self.numel() == 0) {
    return self.alias();
  }
  if (claimed_device().is_cpu()) {
    return formatted_like(self);
  }
  // Other devices use a view, and refuse inputs that cannot be viewed this way.
  return self.view({self.size(0), groups, channels / groups, -1}).permute({0, 2, 1, 3}).contiguous().view(self.sizes());
}

}  // namespace

KernelList vision_kernels() {
  namespace ops = at::_ops;
  return {
      kernel<ops::grid_sampler_3d, &grid_sampler_3d>(),
      kernel<ops::cudnn_grid_sampler, &cudnn_grid_sampler>(),
      kernel<ops::cudnn_grid_sampler_backward, &cudnn_grid_sampler_backward>(),
      kernel<ops::_grid_sampler_2d_cpu_fallback, &grid_sampler_fallback>(),
      kernel<ops::_grid_sampler_2d_cpu_fallback_backward, &grid_sampler_fallback_backward>(),
      kernel<ops::grid_sampler_2d_backward, &grid_sampler_backward>(),
      kernel<ops::grid_sampler_3d_backward, &grid_sampler_backward>(),
      native_kernel<decltype(grid_sampler_2d), &grid_sampler_2d>("aten::grid_sampler_2d"),
      native_kernel<decltype(pixel_shuffle), &pixel_shuffle>("aten::pixel_shuffle"),
      native_kernel<decltype(pixel_unshuffle), &pixel_unshuffle>("aten::pixel_unshuffle"),
      native_kernel<decltype(channel_shuffle), &channel_shuffle>("aten::channel_shuffle"),
      native_kernel<decltype(channel_shuffle), &channel_shuffle>("aten::native_channel_shuffle"),
  };
}

}  // namespace torchfake
