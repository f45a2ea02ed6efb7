// Convolution and its backward: sizes by PyTorch's own formulas, memory format as chosen by the claimed device's
// library.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/ConvUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/slow_conv_transpose2d_meta_dispatch.h>

#include <torchfake/core/kernel_environment.h>
#include <torchfake/rules/forms.h>

namespace torchfake {

namespace {

using OptTensor = std::optional<at::Tensor>;
using ThreeTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

std::vector<int64_t> expanded(c10::IntArrayRef values, size_t dim, const char* name) {
  if (values.size() == 1) {
    return std::vector<int64_t>(dim, values[0]);
  }
  TORCH_CHECK(
      values.size() == dim,
      "expected ",
      name,
      " to be a single integer value or a list of ",
      dim,
      " values to match the convolution dimensions, but got ",
      name,
      "=",
      values);
  return values.vec();
}

struct Geometry {
  std::vector<int64_t> stride;
  std::vector<int64_t> padding;
  std::vector<int64_t> dilation;
  std::vector<int64_t> output_padding;
  bool transposed;
  int64_t groups;
};

Geometry geometry(
    const at::Tensor& weight,
    c10::IntArrayRef stride,
    c10::IntArrayRef padding,
    c10::IntArrayRef dilation,
    bool transposed,
    c10::IntArrayRef output_padding,
    int64_t groups) {
  TORCH_CHECK(weight.dim() > 2, "weight should have at least three dimensions");
  const size_t dim = static_cast<size_t>(weight.dim()) - 2;
  return {
      expanded(stride, dim, "stride"),
      expanded(padding, dim, "padding"),
      expanded(dilation, dim, "dilation"),
      expanded(output_padding, dim, "output_padding"),
      transposed,
      groups};
}

// Libraries do not support transposed convolutions whose output padding reaches the stride.
bool is_padded_by_a_step(const Geometry& g) {
  for (size_t i = 0; i < g.stride.size(); ++i) {
    if (g.transposed && g.output_padding[i] >= g.stride[i]) {
      return true;
    }
  }
  return false;
}

void check_parameters(const Geometry& g) {
  const auto negative = [](int64_t value) { return value < 0; };
  const auto not_positive = [](int64_t value) { return value <= 0; };
  TORCH_CHECK(std::none_of(g.padding.begin(), g.padding.end(), negative), "negative padding is not supported");
  TORCH_CHECK(
      std::none_of(g.output_padding.begin(), g.output_padding.end(), negative),
      "negative output_padding is not supported");
  TORCH_CHECK(std::none_of(g.stride.begin(), g.stride.end(), not_positive), "non-positive stride is not supported");
  TORCH_CHECK(std::none_of(g.dilation.begin(), g.dilation.end(), not_positive), "dilation should be greater than zero");
  TORCH_CHECK(g.groups > 0, "non-positive groups is not supported");
}

void check_shapes(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias, const Geometry& g) {
  const int64_t dim = weight.dim();
  TORCH_CHECK(
      input.dim() == dim,
      "Expected ",
      dim,
      "-dimensional input for ",
      dim,
      "-dimensional weight ",
      weight.sizes(),
      ", but got ",
      input.dim(),
      "-dimensional input of size ",
      input.sizes(),
      " instead");
  TORCH_CHECK(
      weight.size(0) >= g.groups && weight.size(0) % g.groups == 0,
      "Given groups=",
      g.groups,
      ", expected weight to be divisible by ",
      g.groups,
      " at dimension 0, but got weight of size ",
      weight.sizes(),
      " instead");
  const int64_t channels = g.transposed ? weight.size(0) : weight.size(1) * g.groups;
  TORCH_CHECK(
      input.size(1) == channels,
      "Given groups=",
      g.groups,
      ", weight of size ",
      weight.sizes(),
      ", expected input",
      input.sizes(),
      " to have ",
      channels,
      " channels, but got ",
      input.size(1),
      " channels instead");
  const int64_t out_channels = g.transposed ? weight.size(1) * g.groups : weight.size(0);
  TORCH_CHECK(
      !bias.defined() || (bias.dim() == 1 && bias.size(0) == out_channels),
      "Given weight of size ",
      weight.sizes(),
      ", expected bias to be 1-dimensional with ",
      out_channels,
      " elements, but got bias of size ",
      bias.defined() ? bias.sizes() : c10::IntArrayRef(),
      " instead");
}

void check_dtypes(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias) {
  TORCH_CHECK(
      input.scalar_type() == weight.scalar_type(),
      "Input type (",
      input.scalar_type(),
      ") and weight type (",
      weight.scalar_type(),
      ") should be the same");
  TORCH_CHECK(
      !bias.defined() || bias.scalar_type() == input.scalar_type(),
      "Input type (",
      input.scalar_type(),
      ") and bias type (",
      bias.defined() ? bias.scalar_type() : input.scalar_type(),
      ") should be the same");
}

// Neither device has kernels for all integer dtypes.
void check_integers(const at::Tensor& input, const at::Tensor& weight, const Geometry& g) {
  const bool computes = input.numel() > 0 && weight.numel() > 0;
  const int64_t dims = weight.dim() - 2;
  if (!computes || !c10::isIntegralType(input.scalar_type(), /*includeBool=*/true)) {
    return;
  }
  if (claimed_device().is_cuda()) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        !is_padded_by_a_step(g),
        "\"slow_conv_transpose",
        dims,
        "d_out_cuda\" not implemented for '",
        input.scalar_type(),
        '\'');
    TORCH_CHECK(false, "getCudnnDataTypeFromScalarType() not supported for ", input.scalar_type());
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      !g.transposed || !claimed_device().is_cpu() || input.scalar_type() == c10::kLong,
      "\"slow_conv_transpose",
      std::max<int64_t>(dims, 2),
      "d_out_cpu\" not implemented for '",
      input.scalar_type(),
      '\'');
}

void check_kernel_fits(const at::Tensor& input, const at::Tensor& weight, const Geometry& g) {
  for (int64_t i = 2; i < weight.dim() && !g.transposed; ++i) {
    const int64_t padded = input.size(i) + 2 * g.padding[i - 2];
    const int64_t kernel = g.dilation[i - 2] * (weight.size(i) - 1) + 1;
    TORCH_CHECK(
        padded >= kernel,
        "Calculated padded input size per channel: (",
        padded,
        "). Kernel size: (",
        kernel,
        "). Kernel size can't be greater than actual input size");
  }
}

void check(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias, const Geometry& g) {
  check_parameters(g);
  check_shapes(input, weight, bias, g);
  check_dtypes(input, weight, bias);
  check_integers(input, weight, g);
  check_kernel_fits(input, weight, g);
}

bool is_supported(const char* question) {
  const auto op = c10::Dispatcher::singleton().findOp({question, ""});
  return op && op->typed<bool()>().call();
}

// Whether this machine's oneDNN computes in the dtype, according to PyTorch's own operators.
bool onednn_has(c10::ScalarType dtype) {
  static const bool bfloat16 = is_supported("mkldnn::_is_mkldnn_bf16_supported");
  static const bool float16 = is_supported("mkldnn::_is_mkldnn_fp16_supported");
  return dtype == c10::kBFloat16 ? bfloat16 : float16;
}

// Whether the CPU uses oneDNN for a convolution, by PyTorch's conditions.
bool onednn_takes(const at::Tensor& input, const at::Tensor& weight, const Geometry& g) {
  const auto above_one = [](int64_t value) { return value > 1; };
  if (!KernelEnvironment::enabled(KernelEnvironment::kMkldnn) || (g.transposed && is_padded_by_a_step(g))) {
    return false;
  }
  if (c10::isReducedFloatingType(input.scalar_type())) {
    return onednn_has(input.scalar_type());
  }
  const bool is_float = c10::toRealValueType(input.scalar_type()) == c10::kFloat;
  const bool spread = std::any_of(g.stride.begin(), g.stride.end(), above_one) ||
      std::any_of(g.dilation.begin(), g.dilation.end(), above_one);
  const bool worth_it =
      spread || input.size(0) >= 16 || weight.size(-1) != 1 || weight.size(-2) != 1 || KernelEnvironment::threads() > 1;
  const bool large = g.groups > 1 || (weight.size(-1) > 3 && weight.size(-2) > 3) || input.size(0) > 1 ||
      input.size(0) * input.size(1) * input.size(2) * input.size(3) > 20480;
  return is_float && worth_it && large;
}

// A 1D convolution runs as a 2D one on a contiguous input: its result is never channels-last.
at::MemoryFormat memory_format(const at::Tensor& input, const at::Tensor& weight, const Geometry& g) {
  if (weight.dim() < 4) {
    return at::MemoryFormat::Contiguous;
  }
  const at::MemoryFormat channels_last =
      weight.dim() == 4 ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::ChannelsLast3d;
  const bool wants = input.suggest_memory_format() == channels_last || weight.suggest_memory_format() == channels_last;
  // PyTorch's own 3D kernels write a contiguous result.
  if (wants && claimed_device().is_cpu() && weight.dim() == 5 && !onednn_takes(input, weight, g)) {
    return at::MemoryFormat::Contiguous;
  }
  // On a GPU only cuDNN writes channels-last.
  if (wants && !claimed_device().is_cpu() &&
      (is_padded_by_a_step(g) || !KernelEnvironment::enabled(KernelEnvironment::kCudnn))) {
    return at::MemoryFormat::Contiguous;
  }
  // cuDNN does not support bfloat16 before Ampere.
  if (wants && claimed_device().is_cuda() && input.scalar_type() == c10::kBFloat16 &&
      KernelEnvironment::cuda_capability() < 80) {
    return at::MemoryFormat::Contiguous;
  }
  // Neither library supports double; the CPU's fallback writes channels-last in 2D only.
  const bool is_double = input.scalar_type() == c10::kDouble;
  const bool has = !is_double || (claimed_device().is_cpu() && weight.dim() == 4);
  return wants && has ? channels_last : at::MemoryFormat::Contiguous;
}

at::Tensor empty(c10::IntArrayRef sizes, const at::Tensor& like, at::MemoryFormat format) {
  return at::empty(sizes, like.options().device(c10::kMeta).memory_format(format));
}

at::Tensor convolution(
    const at::Tensor& input,
    const at::Tensor& weight,
    const OptTensor& bias,
    c10::IntArrayRef stride,
    c10::IntArrayRef padding,
    c10::IntArrayRef dilation,
    bool transposed,
    c10::IntArrayRef output_padding,
    int64_t groups) {
  const Geometry g = geometry(weight, stride, padding, dilation, transposed, output_padding, groups);
  check(input, weight, bias.value_or(at::Tensor()), g);
  const std::vector<int64_t> sizes = transposed
      ? at::native::conv_input_size(
            input.sizes(), weight.sizes(), g.padding, g.output_padding, g.stride, g.dilation, groups)
      : at::native::conv_output_size(input.sizes(), weight.sizes(), g.padding, g.stride, g.dilation);
  return empty(sizes, input, memory_format(input, weight, g));
}

// oneDNN's convolution, called by name.
at::Tensor mkldnn_convolution(
    const at::Tensor& self,
    const at::Tensor& weight,
    const OptTensor& bias,
    c10::IntArrayRef padding,
    c10::IntArrayRef stride,
    c10::IntArrayRef dilation,
    int64_t groups) {
  const c10::ScalarType dtype = self.scalar_type();
  TORCH_CHECK(
      self.numel() == 0 || (c10::isFloatingType(dtype) && dtype != c10::kDouble) || dtype == c10::kChar,
      "mkldnn_convolution expects an input of float, bfloat16, half, int8 or fp8, but got ",
      dtype);
  return convolution(self, weight, bias, stride, padding, dilation, /*transposed=*/false, {0}, groups);
}

// PyTorch's meta kernel turns one image into a batch by resizing the argument itself; here it is a view.
at::Tensor batched(const at::Tensor& input) {
  return input.dim() == 3 ? input.unsqueeze(0) : input;
}

// PyTorch's meta kernel supports channels-last only on the CPU, and so never returns it for a fake.
at::MemoryFormat slow_format(const at::Tensor& input, const at::Tensor& weight) {
  const bool wants = input.suggest_memory_format() == at::MemoryFormat::ChannelsLast ||
      weight.suggest_memory_format() == at::MemoryFormat::ChannelsLast;
  const bool has = claimed_device().is_cpu() && input.scalar_type() != c10::kDouble;
  return wants && has ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
}

// A single image is processed as a batch of one, and so is the result. The batch dimension is dropped again only if the
// image had to be copied first.
bool drops_batch(const at::Tensor& self) {
  return self.dim() == 3 && !self.is_contiguous();
}

at::Tensor slow_conv_transpose2d(
    const at::Tensor& self,
    const at::Tensor& weight,
    c10::IntArrayRef kernel_size,
    const OptTensor& bias,
    c10::IntArrayRef stride,
    c10::IntArrayRef padding,
    c10::IntArrayRef output_padding,
    c10::IntArrayRef dilation) {
  const at::Tensor result = at::meta::slow_conv_transpose2d(
      batched(self), weight, kernel_size, bias, stride, padding, output_padding, dilation);
  if (drops_batch(self)) {
    return empty(result.sizes().slice(1), result, at::MemoryFormat::Contiguous);
  }
  return empty(result.sizes(), result, slow_format(self, weight));
}

at::Tensor& slow_conv_transpose2d_out(
    const at::Tensor& self,
    const at::Tensor& weight,
    c10::IntArrayRef kernel_size,
    const OptTensor& bias,
    c10::IntArrayRef stride,
    c10::IntArrayRef padding,
    c10::IntArrayRef output_padding,
    c10::IntArrayRef dilation,
    at::Tensor& out) {
  const std::vector<int64_t> before = out.sizes().vec();
  at::meta::slow_conv_transpose2d_outf(
      batched(self), weight, kernel_size, bias, stride, padding, output_padding, dilation, out);
  if (out.sizes() != c10::IntArrayRef(before)) {
    out.unsafeGetTensorImpl()->empty_tensor_restride(slow_format(self, weight));
  }
  if (drops_batch(self)) {
    out.resize_(out.sizes().slice(1).vec());
  }
  return out;
}

ThreeTensors convolution_backward(
    const at::Tensor& grad_output,
    const at::Tensor& input,
    const at::Tensor& weight,
    at::OptionalIntArrayRef /*bias_sizes*/,
    c10::IntArrayRef stride,
    c10::IntArrayRef padding,
    c10::IntArrayRef dilation,
    bool transposed,
    c10::IntArrayRef output_padding,
    int64_t groups,
    std::array<bool, 3> output_mask) {
  const at::MemoryFormat format =
      memory_format(input, weight, geometry(weight, stride, padding, dilation, transposed, output_padding, groups));
  return {
      output_mask[0] ? empty(input.sizes(), input, format) : at::Tensor(),
      output_mask[1] ? empty(weight.sizes(), weight, format) : at::Tensor(),
      output_mask[2] ? empty({grad_output.size(1)}, grad_output, at::MemoryFormat::Contiguous) : at::Tensor()};
}

}  // namespace

KernelList convolution_kernels() {
  return {
      native_kernel<decltype(convolution), &convolution>("aten::convolution"),
      kernel<at::_ops::_convolution, &convolution>(),
      native_kernel<decltype(mkldnn_convolution), &mkldnn_convolution>("aten::mkldnn_convolution"),
      native_kernel<decltype(slow_conv_transpose2d), &slow_conv_transpose2d>("aten::slow_conv_transpose2d"),
      native_kernel<decltype(slow_conv_transpose2d_out), &slow_conv_transpose2d_out>("aten::slow_conv_transpose2d.out"),
      native_kernel<decltype(convolution_backward), &convolution_backward>("aten::convolution_backward"),
  };
}

}  // namespace torchfake
