// Temporary memory of convolutions: copies that PyTorch makes in another layout, and cuDNN's workspaces.
#include <torchfake/rules/convolution_workspace.h>
#include <torchfake/rules/side_memory.h>

#include <algorithm>
#include <cmath>

namespace torchfake::side_memory {

namespace {

// The positions of a convolution's settings in its arguments: 3 in the forward pass, 4 in the backward one.
struct Settings {
  std::vector<int64_t> stride, padding, dilation;
  int64_t groups = 1;
  bool is_transposed = false;
};

std::optional<Settings> settings_at(const Call& call, size_t first, int64_t dims) {
  const auto stride = numbers_at(call, first, dims, 1);
  const auto padding = numbers_at(call, first + 1, dims, 0);
  const auto dilation = numbers_at(call, first + 2, dims, 1);
  const auto groups = number_at(call, first + 5);
  if (!stride || !padding || !dilation || !groups || !call.arg(first + 3).isBool()) {
    return std::nullopt;
  }
  return Settings{*stride, *padding, *dilation, *groups, call.arg(first + 3).toBool()};
}

struct Tensors {
  const c10::TensorImpl* input;
  const c10::TensorImpl* weight;
  int64_t dims() const {
    return input->dim() - 2;
  }
};

// Null for arguments that are not a batch of images and a weight of as many dimensions.
std::optional<Tensors> tensors_at(const Call& call, size_t first) {
  const Tensors tensors{tensor_at(call, first), tensor_at(call, first + 1)};
  const bool is_valid = tensors.input != nullptr && tensors.weight != nullptr && tensors.input->dim() >= 3 &&
      tensors.input->dim() <= 5 && tensors.input->dim() == tensors.weight->dim() && tensors.input->numel() > 0 &&
      tensors.weight->numel() > 0;
  return is_valid ? std::optional(tensors) : std::nullopt;
}

// The layout of cuDNN's tensors. PyTorch adds a dimension to sequences after it has made them contiguous.
c10::MemoryFormat format_of(const Tensors& tensors) {
  if (tensors.dims() == 1 || tensors.input->itemsize() > 4) {
    return c10::MemoryFormat::Contiguous;
  }
  const auto last = tensors.dims() == 2 ? c10::MemoryFormat::ChannelsLast : c10::MemoryFormat::ChannelsLast3d;
  const bool is_last = tensors.input->is_strides_like(last) || tensors.weight->is_strides_like(last);
  return is_last ? last : c10::MemoryFormat::Contiguous;
}

// Copies a tensor into the layout unless it has it. Nothing if it has, or the number to give back.
std::optional<uint32_t> copy_to(const c10::TensorImpl& tensor, c10::MemoryFormat format, Requests& requests) {
  if (tensor.is_contiguous(format)) {
    return std::nullopt;
  }
  return requests.take(bytes_of(tensor));
}

ConvolutionShape shape_of(const Tensors& tensors, const Settings& settings) {
  ConvolutionShape shape{};
  const auto weight = tensors.weight->sizes();
  shape.dims = static_cast<double>(tensors.dims());
  shape.batch = static_cast<double>(tensors.input->size(0));
  shape.groups = static_cast<double>(settings.groups);
  shape.in_channels = static_cast<double>(weight[1]) * shape.groups;
  shape.out_channels = static_cast<double>(weight[0]);
  shape.in_area = shape.out_area = shape.taps = shape.winograd_tiles[0] = shape.winograd_tiles[1] = 1;
  for (size_t i = 0; i < static_cast<size_t>(tensors.dims()); ++i) {
    const int64_t size = tensors.input->size(static_cast<int64_t>(i) + 2);
    const int64_t reach = settings.dilation[i] * (weight[i + 2] - 1) + 1;
    const int64_t other = settings.is_transposed ? (size - 1) * settings.stride[i] - 2 * settings.padding[i] + reach
                                                 : (size + 2 * settings.padding[i] - reach) / settings.stride[i] + 1;
    const auto in = static_cast<double>(settings.is_transposed ? other : size);
    const auto out = static_cast<double>(settings.is_transposed ? size : other);
    shape.in_area *= std::max(in, 0.0);
    shape.out_area *= std::max(out, 0.0);
    shape.winograd_tiles[0] *= std::ceil(out / 2);
    shape.winograd_tiles[1] *= std::ceil(out / 4);
    shape.kernel = std::max(shape.kernel, static_cast<double>(weight[i + 2]));
    shape.taps *= static_cast<double>(weight[i + 2]);
    shape.stride = std::max(shape.stride, static_cast<double>(settings.stride[i]));
    shape.padding = std::max(shape.padding, static_cast<double>(settings.padding[i]));
    shape.dilation = std::max(shape.dilation, static_cast<double>(settings.dilation[i]));
  }
  if (tensors.dims() != 2) {
    shape.winograd_tiles[0] = shape.winograd_tiles[1] = 0;
  }
  shape.itemsize = static_cast<double>(tensors.input->itemsize());
  shape.is_channels_last = format_of(tensors) != c10::MemoryFormat::Contiguous;
  shape.is_bfloat16 = tensors.input->dtype() == caffe2::TypeMeta::Make<c10::BFloat16>();
  shape.is_transposed = settings.is_transposed;
  shape.may_use_tf32 = true;  // PyTorch's default for convolutions
  return shape;
}

// The workspace of a pass as PyTorch names it: forward, a transposed convolution computes the gradient of an input.
size_t workspace(const Tensors& tensors, const Settings& settings, ConvolutionPass pass) {
  constexpr double kMost = 1e15;
  if (settings.is_transposed && pass != ConvolutionPass::kWeightGradient) {
    pass = pass == ConvolutionPass::kForward ? ConvolutionPass::kInputGradient : ConvolutionPass::kForward;
  }
  const ConvolutionShape shape = shape_of(tensors, settings);
  const double largest = std::max(shape.in_channels * shape.in_area, shape.out_channels * shape.out_area);
  if (shape.in_area == 0 || shape.out_area == 0 || largest * shape.batch > kMost || shape.itemsize > 8) {
    return 0;  // invalid, or complex numbers, which are several real convolutions
  }
  return convolution_workspace(shape, pass);
}

void convolution(const Call& call, Requests& requests) {
  const auto tensors = tensors_at(call, 0);
  const auto settings = tensors ? settings_at(call, 3, tensors->dims()) : std::nullopt;
  if (!settings) {
    return;
  }
  const c10::MemoryFormat format = format_of(*tensors);
  copy_to(*tensors->input, format, requests);
  const size_t taken = workspace(*tensors, *settings, ConvolutionPass::kForward);
  const bool copies_weight = !tensors->weight->is_contiguous(format);
  if (taken == 0 && !copies_weight) {
    return;
  }
  requests.output(0);
  if (copies_weight) {
    requests.take(bytes_of(*tensors->weight));
  }
  if (taken != 0) {
    requests.give_back(requests.take(taken));
  }
}

// The gradient of the input, whose operands are copied after it has been allocated, or that of the weight.
void gradient_of(
    uint32_t output,
    const Tensors& tensors,
    const c10::TensorImpl* strided_gradient,
    const Settings& settings,
    Requests& requests) {
  const bool of_input = output == 0;
  c10::SmallVector<uint32_t, 2> copies;
  const auto copy_gradient = [&] {
    if (strided_gradient != nullptr) {
      copies.push_back(requests.take(bytes_of(*strided_gradient)));
    }
  };
  if (!of_input) {
    copy_gradient();
  }
  requests.output(output);
  if (of_input) {
    if (const auto copy = copy_to(*tensors.weight, format_of(tensors), requests)) {
      copies.push_back(*copy);
    }
    copy_gradient();
  }
  const auto pass = of_input ? ConvolutionPass::kInputGradient : ConvolutionPass::kWeightGradient;
  if (const size_t taken = workspace(tensors, settings, pass)) {
    requests.give_back(requests.take(taken));
  }
  for (const uint32_t copy : copies) {
    requests.give_back(copy);
  }
}

// Whether the layout suggests channels_last.
bool is_channels_last(const c10::TensorImpl& tensor) {
  return tensor.is_strides_like(c10::MemoryFormat::ChannelsLast) ||
      tensor.is_strides_like(c10::MemoryFormat::ChannelsLast3d);
}

// The input and a gradient of another layout are converted once. A gradient that only has gaps is copied by each pass.
void convolution_backward(const Call& call, Requests& requests) {
  const c10::TensorImpl* gradient = tensor_at(call, 0);
  const auto tensors = tensors_at(call, 1);
  const auto settings = tensors ? settings_at(call, 4, tensors->dims()) : std::nullopt;
  if (!settings || gradient == nullptr || gradient->dim() != tensors->input->dim()) {
    return;
  }
  const c10::MemoryFormat format = format_of(*tensors);
  c10::SmallVector<uint32_t, 2> converted;
  bool is_last = is_channels_last(*tensors->input);
  if (tensors->dims() == 1 || mask_at(call, 10, 1)) {
    if (const auto copy = copy_to(*tensors->input, format, requests)) {
      converted.push_back(*copy);
      is_last = format != c10::MemoryFormat::Contiguous;
    }
  }
  const c10::TensorImpl* strided = gradient->is_contiguous(format) ? nullptr : gradient;
  if (tensors->dims() > 1 && is_channels_last(*gradient) != is_last) {
    converted.push_back(requests.take(bytes_of(*gradient)));
    strided = nullptr;
  }
  for (const uint32_t output : {0U, 1U}) {
    if (mask_at(call, 10, output)) {
      gradient_of(output, *tensors, strided, *settings, requests);
    }
  }
  for (; !converted.empty(); converted.pop_back()) {
    requests.give_back(converted.back());
  }
  if (mask_at(call, 10, 2)) {
    // The bias: a sum over all dimensions but the channels.
    requests.output(2);
    c10::SmallVector<int64_t, 4> dims{0};
    for (int64_t dim = 2; dim < gradient->dim(); ++dim) {
      dims.push_back(dim);
    }
    reduce(*gradient, dims, accumulator_size(*gradient), requests);
  }
}

constexpr Row kRows[] = {
    {"aten::convolution", {convolution}},
    {"aten::convolution_backward", {convolution_backward}},
};

}  // namespace

c10::ArrayRef<Row> convolution_rows() {
  return kRows;
}

}  // namespace torchfake::side_memory
