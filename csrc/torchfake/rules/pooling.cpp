// Pooling without a structured kernel, and im2col-like operators.
#include <ATen/native/AdaptivePooling.h>
#include <ATen/native/Pool.h>
#include <ATen/native/im2col_shape_check.h>

#include <torchfake/rules/forms.h>
#include <torchfake/rules/results.h>

namespace torchfake {

namespace {

using TwoTensors = std::tuple<at::Tensor, at::Tensor>;

at::Tensor adaptive_avg_pool(const at::Tensor& self, c10::IntArrayRef output_size, int64_t dim) {
  TORCH_CHECK(
      static_cast<int64_t>(output_size.size()) == dim, "adaptive_avg_pool", dim, "d: output_size must be ", dim);
  TORCH_CHECK(
      self.dim() == dim + 1 || self.dim() == dim + 2,
      "adaptive_avg_pool",
      dim,
      "d(): Expected ",
      dim + 1,
      "D or ",
      dim + 2,
      "D tensor, but got ",
      self.sizes());
  for (int64_t i = -dim; i < 0; ++i) {
    TORCH_CHECK(
        self.size(i) > 0,
        "adaptive_avg_pool",
        dim,
        "d(): Expected input to have non-zero size for non-batch dimensions, but input has sizes ",
        self.sizes(),
        " with dimension ",
        i + self.dim(),
        " being empty");
  }
  std::vector<int64_t> sizes = self.sizes().vec();
  std::copy(output_size.begin(), output_size.end(), sizes.end() - dim);
  return dim == 2 && self.dim() == 4 ? formatted(sizes, self) : empty(sizes, self.scalar_type());
}

at::Tensor adaptive_avg_pool2d(const at::Tensor& self, c10::IntArrayRef output_size) {
  return adaptive_avg_pool(self, output_size, 2);
}

at::Tensor adaptive_avg_pool3d(const at::Tensor& self, c10::IntArrayRef output_size) {
  return adaptive_avg_pool(self, output_size, 3);
}

at::Tensor adaptive_avg_pool2d_backward(const at::Tensor& grad_output, const at::Tensor& self) {
  at::native::adaptive_pool_empty_output_check(grad_output, "adaptive_avg_pool2d_backward");
  TORCH_CHECK(
      self.dim() == 3 || self.dim() == 4,
      "adaptive_avg_pool2d_backward(): Expected 3D or 4D tensor, but got ",
      self.sizes());
  TORCH_CHECK(
      self.dtype() == grad_output.dtype(),
      "expected dtype ",
      self.dtype(),
      " for `grad_output` but got dtype ",
      grad_output.dtype());
  return formatted_like(self);
}

at::Tensor adaptive_avg_pool3d_backward(const at::Tensor& grad_output, const at::Tensor& self) {
  at::native::adaptive_pool_empty_output_check(grad_output, "adaptive_avg_pool3d_backward");
  return contiguous_like(self);
}

struct Window {
  std::array<int, 3> kernel, stride, padding, dilation;
};

std::array<int, 3> three(c10::IntArrayRef values, const char* what) {
  TORCH_CHECK(
      values.size() == 1 || values.size() == 3,
      "max_pool3d: ",
      what,
      " must either be a single int, or a tuple of three ints");
  std::array<int, 3> result{};
  for (size_t i = 0; i < 3; ++i) {
    result[i] = static_cast<int>(values.size() == 1 ? values[0] : values[i]);
  }
  return result;
}

Window window_of(
    c10::IntArrayRef kernel,
    c10::IntArrayRef stride,
    c10::IntArrayRef padding,
    c10::IntArrayRef dilation) {
  return {
      three(kernel, "kernel_size"),
      three(stride.empty() ? kernel : stride, "stride"),
      three(padding, "padding"),
      three(dilation, "dilation")};
}

TwoTensors max_pool3d(
    const at::Tensor& self,
    c10::IntArrayRef kernel_size,
    c10::IntArrayRef stride,
    c10::IntArrayRef padding,
    c10::IntArrayRef dilation,
    bool ceil_mode) {
  const Window w = window_of(kernel_size, stride, padding, dilation);
  TORCH_CHECK(
      self.dim() == 4 || self.dim() == 5, "max_pool3d: Expected 4D or 5D tensor for input, but got ", self.sizes());
  TORCH_CHECK(
      !claimed_device().is_cpu() || self.suggest_memory_format() != at::MemoryFormat::ChannelsLast,
      "Unsupported memory format. Supports only ChannelsLast3d, Contiguous");
  std::vector<int64_t> sizes = self.sizes().vec();
  std::array<int64_t, 3> out{};
  for (int64_t i = 0; i < 3; ++i) {
    out[i] = at::native::pooling_output_shape<int64_t>(
        self.size(i - 3), w.kernel[i], w.padding[i], w.stride[i], w.dilation[i], ceil_mode);
    sizes[sizes.size() - 3 + i] = out[i];
  }
  at::native::pool3d_shape_check(
      self,
      self.size(-4),
      w.kernel[0],
      w.kernel[1],
      w.kernel[2],
      w.stride[0],
      w.stride[1],
      w.stride[2],
      w.padding[0],
      w.padding[1],
      w.padding[2],
      w.dilation[0],
      w.dilation[1],
      w.dilation[2],
      self.size(-3),
      self.size(-2),
      self.size(-1),
      out[0],
      out[1],
      out[2],
      "max_pool3d_with_indices()",
      /*check_input_size=*/true);
  const at::Tensor output = formatted(sizes, self);
  return {output, strided_like(output, c10::kLong)};
}

at::Tensor max_pool3d_backward(const at::Tensor& /*grad_output*/, const at::Tensor& self) {
  return formatted_like(self);
}

// The sizes of the result of unpooling over `dim` dimensions.
std::vector<int64_t> unpooled_sizes(
    const at::Tensor& self,
    const at::Tensor& indices,
    c10::IntArrayRef output_size,
    int64_t dim) {
  TORCH_CHECK(
      indices.scalar_type() == c10::kLong, "elements in indices should be type int64 but got: ", indices.scalar_type());
  TORCH_CHECK(
      static_cast<int64_t>(output_size.size()) == dim,
      "There should be exactly ",
      dim,
      " elements in output_size, but got ",
      output_size.size(),
      " elements.");
  TORCH_CHECK(
      self.dim() == dim + 1 || self.dim() == dim + 2,
      "Input to max_unpooling",
      dim,
      "d should be a ",
      dim + 1,
      "d or ",
      dim + 2,
      "d Tensor, but got a tensor with ",
      self.dim(),
      " dimensions.");
  TORCH_CHECK(
      self.sizes() == indices.sizes(),
      "Expected shape of indices to be same as that of the input tensor (",
      self.sizes(),
      ") but got indices tensor with shape: ",
      indices.sizes());
  std::vector<int64_t> sizes = self.sizes().vec();
  std::copy(output_size.begin(), output_size.end(), sizes.end() - dim);
  return sizes;
}

at::Tensor max_unpool2d(const at::Tensor& self, const at::Tensor& indices, c10::IntArrayRef output_size) {
  const std::vector<int64_t> sizes = unpooled_sizes(self, indices, output_size, 2);
  for (int64_t i = 1; i < self.dim(); ++i) {
    TORCH_CHECK(
        self.size(i) > 0,
        "max_unpooling2d_forward_out(): Expected input to have non-zero size for non-batch dimensions, but got ",
        self.sizes(),
        " with dimension ",
        i,
        " being empty.");
  }
  return claimed_device().is_cpu() ? formatted(sizes, self) : empty(sizes, self.scalar_type());
}

at::Tensor max_unpool3d(
    const at::Tensor& self,
    const at::Tensor& indices,
    c10::IntArrayRef output_size,
    c10::IntArrayRef stride,
    c10::IntArrayRef padding) {
  TORCH_CHECK(
      stride.size() == 3 && padding.size() == 3,
      "There should be exactly three elements (depth, height, width) in stride and padding");
  TORCH_CHECK(
      stride[0] > 0 && stride[1] > 0 && stride[2] > 0, "strides should be greater than zero, but got stride: ", stride);
  return empty(unpooled_sizes(self, indices, output_size, 3), self.scalar_type());
}

at::Tensor fractional_max_pool3d_backward(const at::Tensor& /*grad_output*/, const at::Tensor& self) {
  return contiguous_like(self);
}

void check_pairs(
    c10::IntArrayRef kernel_size,
    c10::IntArrayRef dilation,
    c10::IntArrayRef padding,
    c10::IntArrayRef stride) {
  TORCH_CHECK(
      kernel_size.size() == 2 && dilation.size() == 2 && padding.size() == 2 && stride.size() == 2,
      "It is expected kernel_size, dilation, padding and stride equals to 2");
}

at::Tensor im2col(
    const at::Tensor& self,
    c10::IntArrayRef kernel_size,
    c10::IntArrayRef dilation,
    c10::IntArrayRef padding,
    c10::IntArrayRef stride) {
  check_pairs(kernel_size, dilation, padding, stride);
  at::native::im2col_shape_check(
      self,
      at::Tensor(),
      kernel_size[0],
      kernel_size[1],
      dilation[0],
      dilation[1],
      padding[0],
      padding[1],
      stride[0],
      stride[1]);
  int64_t windows = 1;
  for (int64_t i = 0; i < 2; ++i) {
    windows *= (self.size(i - 2) + 2 * padding[i] - (dilation[i] * (kernel_size[i] - 1) + 1)) / stride[i] + 1;
  }
  const int64_t rows = self.size(-3) * kernel_size[0] * kernel_size[1];
  return self.dim() == 3 ? empty({rows, windows}, self.scalar_type())
                         : empty({self.size(0), rows, windows}, self.scalar_type());
}

at::Tensor col2im(
    const at::Tensor& self,
    c10::IntArrayRef output_size,
    c10::IntArrayRef kernel_size,
    c10::IntArrayRef dilation,
    c10::IntArrayRef padding,
    c10::IntArrayRef stride) {
  TORCH_CHECK(output_size.size() == 2, "It is expected output_size equals to 2, but got size ", output_size.size());
  check_pairs(kernel_size, dilation, padding, stride);
  at::native::col2im_shape_check(
      self,
      at::Tensor(),
      output_size[0],
      output_size[1],
      kernel_size[0],
      kernel_size[1],
      dilation[0],
      dilation[1],
      padding[0],
      padding[1],
      stride[0],
      stride[1]);
  const int64_t planes = self.size(-2) / (kernel_size[0] * kernel_size[1]);
  return self.dim() == 2 ? empty({planes, output_size[0], output_size[1]}, self.scalar_type())
                         : empty({self.size(0), planes, output_size[0], output_size[1]}, self.scalar_type());
}

}  // namespace

KernelList pooling_kernels() {
  namespace ops = at::_ops;
  return {
      kernel<ops::_adaptive_avg_pool2d, &adaptive_avg_pool2d>(),
      kernel<ops::_adaptive_avg_pool3d, &adaptive_avg_pool3d>(),
      out_form<ops::adaptive_avg_pool2d_out, ops::_adaptive_avg_pool2d>(OutDtype::kSame),
      out_form<ops::adaptive_avg_pool3d_out, ops::_adaptive_avg_pool3d>(OutDtype::kSame),
      kernel<ops::_adaptive_avg_pool2d_backward, &adaptive_avg_pool2d_backward>(),
      kernel<ops::_adaptive_avg_pool3d_backward, &adaptive_avg_pool3d_backward>(),
      out_form<ops::adaptive_avg_pool3d_backward_grad_input, ops::_adaptive_avg_pool3d_backward>(OutDtype::kSame),
      kernel<ops::max_pool3d_with_indices, &max_pool3d>(),
      out_form<ops::max_pool3d_with_indices_out, ops::max_pool3d_with_indices>(OutDtype::kSame),
      kernel<ops::max_pool3d_with_indices_backward, &max_pool3d_backward>(),
      out_form<ops::max_pool3d_with_indices_backward_grad_input, ops::max_pool3d_with_indices_backward>(
          OutDtype::kSame),
      kernel<ops::max_unpool2d, &max_unpool2d>(),
      out_form<ops::max_unpool2d_out, ops::max_unpool2d>(OutDtype::kSame),
      kernel<ops::max_unpool3d, &max_unpool3d>(),
      out_form<ops::max_unpool3d_out, ops::max_unpool3d>(OutDtype::kSame),
      kernel<ops::fractional_max_pool3d_backward, &fractional_max_pool3d_backward>(),
      out_form<ops::fractional_max_pool3d_backward_grad_input, ops::fractional_max_pool3d_backward>(OutDtype::kSame),
      kernel<ops::im2col, &im2col>(),
      out_form<ops::im2col_out, ops::im2col>(OutDtype::kSame),
      kernel<ops::col2im, &col2im>(),
      out_form<ops::col2im_out, ops::col2im>(OutDtype::kSame),
  };
}

}  // namespace torchfake
