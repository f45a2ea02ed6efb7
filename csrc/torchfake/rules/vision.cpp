// Operators on images: whether the result is contiguous or keeps the input's memory format.
#include <ATen/EmptyTensor.h>
#include <ATen/native/GridSamplerUtils.h>
#include <ATen/native/PixelShuffle.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/pixel_shuffle_compositeexplicitautogradnonfunctional_dispatch.h>
#include <ATen/ops/pixel_unshuffle_compositeexplicitautogradnonfunctional_dispatch.h>
#include <ATen/ops/replication_pad2d_meta_dispatch.h>
#include <ATen/ops/replication_pad3d_meta_dispatch.h>

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

// The kernels of the CPU keep the memory format, where it fits the result.
at::Tensor in_format_of(const at::Tensor& input, c10::IntArrayRef sizes) {
  return at::empty(sizes, input.options().memory_format(input.suggest_memory_format()));
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
  return in_format_of(
      self, with_image(self, self.size(-3) / factor / factor, self.size(-2) * factor, self.size(-1) * factor));
}

at::Tensor pixel_unshuffle(const at::Tensor& self, int64_t factor) {
  if (!claimed_device().is_cpu()) {
    return at::compositeexplicitautogradnonfunctional::pixel_unshuffle(self, factor);
  }
  at::native::check_pixel_unshuffle_shapes(self, factor);
  if (self.numel() == 0) {
    return self.clone();  // with the sizes it has: the real kernel does not shuffle nothing
  }
  return in_format_of(
      self, with_image(self, self.size(-3) * factor * factor, self.size(-2) / factor, self.size(-1) / factor));
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
  if (claimed_device().is_cpu()) {
    return self.numel() == 0 ? self.alias() : in_format_of(self, self.sizes());
  }
  // Elsewhere it is a view, and refuses what cannot be viewed so.
  return self.view({self.size(0), groups, channels / groups, -1}).permute({0, 2, 1, 3}).contiguous().view(self.sizes());
}

at::Tensor max_unpool2d(const at::Tensor& self, const at::Tensor& indices, c10::IntArrayRef output_size) {
  TORCH_CHECK(
      indices.scalar_type() == c10::kLong, "elements in indices should be type int64 but got: ", indices.scalar_type());
  TORCH_CHECK(
      output_size.size() == 2,
      "There should be exactly two elements (height, width) in output_size, but got ",
      output_size.size(),
      " elements.");
  TORCH_CHECK(
      self.dim() == 3 || self.dim() == 4,
      "Input to max_unpooling2d should be a 3d or 4d Tensor, but got a tensor with ",
      self.dim(),
      " dimensions.");
  TORCH_CHECK(
      self.sizes() == indices.sizes(),
      "Expected shape of indices to be same as that of the input tensor (",
      self.sizes(),
      ") but got indices tensor with shape: ",
      indices.sizes());
  for (int64_t i = 1; i < self.dim(); ++i) {
    TORCH_CHECK(
        self.size(i) > 0,
        "max_unpooling2d_forward_out(): Expected input to have non-zero size for non-batch dimensions, but got ",
        self.sizes(),
        " with dimension ",
        i,
        " being empty.");
  }
  const std::vector<int64_t> sizes = with_image(self, self.size(-3), output_size[0], output_size[1]);
  const bool keeps_format = claimed_device().is_cpu() && self.dim() == 4;
  return keeps_format ? in_format_of(self, sizes) : at::Tensor(at::detail::empty_meta(sizes, self.scalar_type()));
}

// The kernels of the CPU lay out the result anew when its size is known.
at::Tensor& in_format_of_input(const at::Tensor& self, at::Tensor& out) {
  if (claimed_device().is_cpu()) {
    out.unsafeGetTensorImpl()->empty_tensor_restride(self.suggest_memory_format());
  }
  return out;
}

at::Tensor replication_pad2d(const at::Tensor& self, c10::IntArrayRef padding) {
  at::Tensor out = at::meta::replication_pad2d(self, padding);
  return in_format_of_input(self, out);
}

at::Tensor& replication_pad2d_out(const at::Tensor& self, c10::IntArrayRef padding, at::Tensor& out) {
  return in_format_of_input(self, at::meta::replication_pad2d_outf(self, padding, out));
}

at::Tensor replication_pad3d(const at::Tensor& self, c10::IntArrayRef padding) {
  at::Tensor out = at::meta::replication_pad3d(self, padding);
  return in_format_of_input(self, out);
}

at::Tensor& replication_pad3d_out(const at::Tensor& self, c10::IntArrayRef padding, at::Tensor& out) {
  return in_format_of_input(self, at::meta::replication_pad3d_outf(self, padding, out));
}

}  // namespace

KernelList vision_kernels() {
  namespace ops = at::_ops;
  return {
      kernel<ops::grid_sampler_3d, &grid_sampler_3d>(),
      kernel<ops::grid_sampler_2d_backward, &grid_sampler_backward>(),
      kernel<ops::grid_sampler_3d_backward, &grid_sampler_backward>(),
      native_kernel<decltype(grid_sampler_2d), &grid_sampler_2d>("aten::grid_sampler_2d"),
      native_kernel<decltype(pixel_shuffle), &pixel_shuffle>("aten::pixel_shuffle"),
      native_kernel<decltype(pixel_unshuffle), &pixel_unshuffle>("aten::pixel_unshuffle"),
      native_kernel<decltype(channel_shuffle), &channel_shuffle>("aten::channel_shuffle"),
      native_kernel<decltype(channel_shuffle), &channel_shuffle>("aten::native_channel_shuffle"),
      native_kernel<decltype(max_unpool2d), &max_unpool2d>("aten::max_unpool2d"),
      native_kernel<decltype(replication_pad2d), &replication_pad2d>("aten::replication_pad2d"),
      native_kernel<decltype(replication_pad2d_out), &replication_pad2d_out>("aten::replication_pad2d.out"),
      native_kernel<decltype(replication_pad3d), &replication_pad3d>("aten::replication_pad3d"),
      native_kernel<decltype(replication_pad3d_out), &replication_pad3d_out>("aten::replication_pad3d.out"),
  };
}

}  // namespace torchfake
