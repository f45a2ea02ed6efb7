// Temporary memory of convolutions: cuDNN's kernels require channels-last and copy other layouts.
#include <torchfake/rules/side_memory.h>

#include <algorithm>

namespace torchfake::side_memory {

namespace {

// The properties on which layout copies depend. The factors are medians of 1,600 recorded calls, relative to the bytes
// of input, weight and output together.
struct ConvolutionKind {
  bool is_backward = false;
  bool is_channels_last = false;
  bool is_pointwise = false;
  bool is_strided = false;
  bool is_grouped = false;
  bool is_float = false;
};

double layout_copies(const ConvolutionKind& kind) {
  if (kind.is_pointwise && !kind.is_strided) {
    return 0;  // a matrix product
  }
  if (!kind.is_channels_last) {
    return kind.is_backward ? 1.12 : 1.0;
  }
  if (kind.is_grouped) {
    return kind.is_float == kind.is_backward ? 1.0 : 0.0;
  }
  if (kind.is_backward) {
    return kind.is_strided ? 0.5 : 0.12;
  }
  return 0;
}

bool is_channels_last(const c10::TensorImpl& tensor) {
  return tensor.dim() >= 4 && tensor.stride(1) == 1 && tensor.size(1) > 1;
}

struct ConvolutionArguments {
  const c10::TensorImpl* input;
  const c10::TensorImpl* weight;
  size_t output_bytes;
  size_t stride, groups;  // the positions of these arguments
  bool is_backward;
};

// cuDNN's channels-last kernels read groups of four channels: input and weight with another number, such as an image's
// three, are copied with zeros added. 0 if they need no copy.
size_t padded_copies(const ConvolutionArguments& a) {
  constexpr int64_t kGroup = 4;
  const int64_t channels = a.input->size(1);
  if (channels == 0 || channels % kGroup == 0) {
    return 0;
  }
  const auto padded = static_cast<size_t>(div_up(channels, kGroup) * kGroup);
  return (bytes_of(*a.input) + bytes_of(*a.weight)) / static_cast<size_t>(channels) * padded;
}

// The memory of one pass over the three tensors; none for ATen's own kernels.
size_t workspace(const Call& call, const ConvolutionArguments& a) {
  const auto strides = numbers_at(call, a.stride, a.input->dim() - 2, 1);
  const auto groups = number_at(call, a.groups);
  if (!strides || !groups || (*groups > 1 && a.weight->size(1) == 1)) {
    return 0;  // the last condition: depthwise
  }
  const auto kernel = a.weight->sizes().slice(2);
  ConvolutionKind kind;
  kind.is_backward = a.is_backward;
  kind.is_channels_last = is_channels_last(*a.input);
  kind.is_pointwise = std::all_of(kernel.begin(), kernel.end(), [](int64_t size) { return size == 1; });
  kind.is_strided = std::any_of(strides->begin(), strides->end(), [](int64_t stride) { return stride != 1; });
  kind.is_grouped = *groups > 1;
  kind.is_float = a.input->itemsize() >= 4;
  if (kind.is_channels_last && !kind.is_grouped) {
    if (const size_t padded = padded_copies(a)) {
      return padded;
    }
  }
  const auto bytes = static_cast<double>(bytes_of(*a.input) + bytes_of(*a.weight) + a.output_bytes);
  return static_cast<size_t>(layout_copies(kind) * bytes);
}

// The number of elements of a convolution's output; 0 if it is invalid.
int64_t output_numel(const Call& call, const c10::TensorImpl& input, const c10::TensorImpl& weight) {
  const int64_t dims = input.dim() - 2;
  const auto stride = numbers_at(call, 3, dims, 1);
  const auto padding = numbers_at(call, 4, dims, 0);
  const auto dilation = numbers_at(call, 5, dims, 1);
  const auto groups = number_at(call, 8);
  if (!stride || !padding || !dilation || !groups || !call.arg(6).isBool()) {
    return 0;
  }
  const bool transposed = call.arg(6).toBool();
  double count = static_cast<double>(input.size(0)) *
      (transposed ? static_cast<double>(weight.size(1)) * static_cast<double>(*groups)
                  : static_cast<double>(weight.size(0)));
  for (size_t i = 0; i < static_cast<size_t>(dims); ++i) {
    const int64_t size = input.size(static_cast<int64_t>(i) + 2);
    const int64_t kernel = (*dilation)[i] * (weight.size(static_cast<int64_t>(i) + 2) - 1) + 1;
    const int64_t out = transposed ? (size - 1) * (*stride)[i] - 2 * (*padding)[i] + kernel
                                   : (size + 2 * (*padding)[i] - kernel) / (*stride)[i] + 1;
    count *= static_cast<double>(std::max<int64_t>(out, 0));
  }
  return count <= static_cast<double>(kMostElements) ? static_cast<int64_t>(count) : 0;
}

void convolution(const Call& call, Requests& requests) {
  const c10::TensorImpl* input = tensor_at(call, 0);
  const c10::TensorImpl* weight = tensor_at(call, 1);
  if (input == nullptr || weight == nullptr || input->dim() != weight->dim() || input->dim() < 3) {
    return;
  }
  const auto output = static_cast<size_t>(output_numel(call, *input, *weight)) * input->itemsize();
  if (const size_t taken =
          workspace(call, {input, weight, output, /*stride=*/3, /*groups=*/8, /*is_backward=*/false})) {
    requests.take(taken);
  }
}

void convolution_backward(const Call& call, Requests& requests) {
  const c10::TensorImpl* gradient = tensor_at(call, 0);
  const c10::TensorImpl* input = tensor_at(call, 1);
  const c10::TensorImpl* weight = tensor_at(call, 2);
  if (gradient == nullptr || input == nullptr || weight == nullptr || input->dim() != weight->dim() ||
      input->dim() < 3) {
    return;
  }
  const size_t taken =
      workspace(call, {input, weight, bytes_of(*gradient), /*stride=*/4, /*groups=*/9, /*is_backward=*/true});
  if (taken == 0) {
    return;
  }
  // One pass for the gradient of the input and one for that of the weight.
  for (const uint32_t output : {0U, 1U}) {
    if (mask_at(call, 10, output)) {
      requests.output(output);
      requests.give_back(requests.take(taken));
    }
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
