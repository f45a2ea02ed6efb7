// Temporary memory of normalisation, softmax, dropout, pooling and resampling.
#include <torchfake/rules/side_memory.h>

#include <algorithm>
#include <bit>

namespace torchfake::side_memory {

namespace {

bool is_half(const c10::TensorImpl& tensor) {
  return at::isReducedFloatingType(c10::typeMetaToScalarType(tensor.dtype()));
}

// The mask is allocated first: it may split the block that the output would have filled.
void mask_before_output(const Call& call, Requests& requests) {
  requests.output(1);
  requests.output(0);
}

void native_dropout(const Call& call, Requests& requests) {
  const c10::TensorImpl* input = tensor_at(call, 0);
  const bool is_training = call.arg(2).isNone() || flag_at(call, 2);
  const double p = call.arg(1).isDouble() ? call.arg(1).toDouble() : 0;
  if (is_training && p < 1 && input != nullptr && input->numel() > 0) {
    mask_before_output(call, requests);
  }
}

// The product of gradient and output, before summation.
void softmax_backward(const Call& call, Requests& requests) {
  if (const c10::TensorImpl* gradient = tensor_at(call, 0)) {
    requests.take(bytes_of(*gradient));
    copy_if_strided(call, 0, requests);
    copy_if_strided(call, 1, requests);
  }
}

void contiguous_first(const Call& call, Requests& requests) {
  copy_if_strided(call, 0, requests);
}

void contiguous_first_two(const Call& call, Requests& requests) {
  copy_if_strided(call, 0, requests);
  copy_if_strided(call, 1, requests);
}

void layer_norm(const Call& call, Requests& requests) {
  if (copy_if_strided(call, 0, requests)) {
    requests.outputs(3);
  }
}

// There is one row per element of the saved statistics. Many short rows are first summed in blocks of 32.
void layer_norm_backward(const Call& call, Requests& requests) {
  constexpr int64_t kManyRows = 65536;
  constexpr int64_t kMostBlocks = 32768;
  const c10::TensorImpl* input = tensor_at(call, 1);
  const c10::TensorImpl* statistic = tensor_at(call, 4);
  if (input == nullptr || statistic == nullptr) {
    return;
  }
  if (copy_if_strided(call, 1, requests)) {
    requests.outputs(3);
  }
  copy_if_strided(call, 0, requests);
  const int64_t rows = statistic->numel();
  if (rows <= kManyRows || input->numel() / 32 / rows >= kMultiprocessors / 2) {
    return;
  }
  const int64_t width = input->numel() / rows;
  const int64_t blocks = std::min(kMostBlocks / div_up(width, 32), div_up(rows, 32));
  for (const size_t gradient : {size_t{1}, size_t{2}}) {
    if (mask_at(call, 7, gradient)) {
      requests.take(static_cast<size_t>(blocks * width) * input->itemsize());
    }
  }
}

// Kernels whose threads lie along the channels. cuDNN has operators of its own.
bool has_channels_last(const c10::TensorImpl& input) {
  return input.dim() > 1 && input.numel() > 0 &&
      (input.is_contiguous(at::MemoryFormat::ChannelsLast) || input.is_contiguous(at::MemoryFormat::ChannelsLast3d) ||
       (input.is_contiguous() && input.stride(1) == 1));
}

// Partial results of blocks that reduce the same channels, `count` floats for each channel, and counters of the blocks
// that have finished. One block is enough for few elements.
void batch_norm_blocks(const c10::TensorImpl& input, int64_t count, Requests& requests) {
  constexpr int64_t kMostThreads = 512;
  constexpr int64_t kChannelsOfBlock = 32;
  constexpr int64_t kElementsOfThread = 16;
  constexpr int64_t kMostBlocks = 128;
  constexpr int64_t kFewestBlocks = 8;
  const auto power = [](int64_t n) { return static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(n))); };
  const int64_t channels = input.size(1);
  const int64_t elements = input.numel() / channels;
  int64_t width = std::min(power(channels), kChannelsOfBlock);
  const int64_t height = std::min(power(div_up(elements, kElementsOfThread)), kMostThreads / width);
  if (width * height != kMostThreads) {
    width = std::min(power(channels), kMostThreads / height);
  }
  const int64_t blocks = std::min(div_up(elements, height * kElementsOfThread), kMostBlocks);
  if (blocks < kFewestBlocks) {
    return;
  }
  const uint32_t partial = requests.take(static_cast<size_t>(count * channels * blocks) * accumulator_size(input));
  const uint32_t counters = requests.take(static_cast<size_t>(div_up(channels, width)) * sizeof(int32_t));
  requests.give_back(counters);
  requests.give_back(partial);
}

void batch_norm(const Call& call, Requests& requests) {
  const c10::TensorImpl* input = tensor_at(call, 0);
  if (input != nullptr && flag_at(call, 5) && has_channels_last(*input)) {
    requests.outputs(3);
    batch_norm_blocks(*input, 4, requests);
  }
}

// cuDNN's kernel for channels_last: two sums of 64 channels over a tile of rows, and flags. As recorded for 47 shapes.
void cudnn_batch_norm_tiles(
    const c10::TensorImpl& input,
    int64_t tile,
    int64_t fixed,
    int64_t flag,
    Requests& requests) {
  const bool is_last =
      input.is_strides_like(at::MemoryFormat::ChannelsLast) || input.is_strides_like(at::MemoryFormat::ChannelsLast3d);
  if (!is_last || input.numel() == 0) {
    return;
  }
  constexpr auto kSums = static_cast<int64_t>(sizeof(float) * 2 * 64);
  const int64_t groups = div_up(input.size(1), 64);
  const int64_t tiles = div_up(input.numel() / input.size(1), tile);
  requests.take(static_cast<size_t>(fixed + groups * 4 + tiles * groups * (kSums + flag)));
}

void cudnn_batch_norm(const Call& call, Requests& requests) {
  const c10::TensorImpl* input = tensor_at(call, 0);
  if (input != nullptr && flag_at(call, 5)) {
    cudnn_batch_norm_tiles(*input, input->itemsize() == 2 ? 160 : 64, 1072, 4, requests);
  }
}

void cudnn_batch_norm_backward(const Call& call, Requests& requests) {
  if (const c10::TensorImpl* input = tensor_at(call, 0)) {
    cudnn_batch_norm_tiles(*input, 96, 1056, 0, requests);
  }
}

// Two sums for each channel, from which the gradient of the input is computed.
void batch_norm_backward(const Call& call, Requests& requests) {
  const c10::TensorImpl* input = tensor_at(call, 1);
  const bool has_all = mask_at(call, 9, 0) && mask_at(call, 9, 1) && mask_at(call, 9, 2);
  if (input == nullptr || !has_all || !has_channels_last(*input)) {
    return;
  }
  const size_t sums = static_cast<size_t>(input->size(1)) * accumulator_size(*input);
  requests.take(sums);
  requests.take(sums);
  requests.output(1);
  requests.output(2);
  batch_norm_blocks(*input, 2, requests);
  requests.output(0);
}

// A scale and a bias for each channel; for half precision also the statistics in float32.
void group_norm(const Call& call, Requests& requests) {
  const c10::TensorImpl* input = tensor_at(call, 0);
  const auto batch = number_at(call, 3);
  const auto channels = number_at(call, 4);
  const auto groups = number_at(call, 6);
  if (input == nullptr || !batch || !channels || !groups || *batch > input->numel() || *channels > input->numel()) {
    return;
  }
  if (is_half(*input)) {
    const auto statistics = static_cast<size_t>(*batch * std::min(*groups, *channels)) * 4;
    requests.take(statistics);
    requests.take(statistics);
  }
  if (tensor_at(call, 1) != nullptr || tensor_at(call, 2) != nullptr) {
    const auto factors = static_cast<size_t>(*batch * *channels) * accumulator_size(*input);
    requests.take(factors);
    requests.take(factors);
  }
}

void group_norm_backward(const Call& call, Requests& requests) {
  const c10::TensorImpl* input = tensor_at(call, 1);
  const auto batch = number_at(call, 5);
  const auto channels = number_at(call, 6);
  const auto groups = number_at(call, 8);
  if (input == nullptr || !batch || !channels || !groups || *batch > input->numel() || *channels > input->numel()) {
    return;
  }
  const size_t accumulator = accumulator_size(*input);
  const auto by_channel = static_cast<size_t>(*batch * *channels) * accumulator;
  requests.take(by_channel);
  requests.take(by_channel);
  if (mask_at(call, 9, 0)) {
    const auto by_group = static_cast<size_t>(*batch * std::min(*groups, *channels)) * accumulator;
    requests.take(by_group);
    requests.take(by_group);
    requests.take(by_channel);
  }
}

// Without channels_last kernels, a channels_last input is copied, and results are copied back unless they have the layout
// already.
bool is_channels_last(const c10::TensorImpl& tensor) {
  return tensor.dim() == 4 && !tensor.is_contiguous() && tensor.is_contiguous(at::MemoryFormat::ChannelsLast);
}

// Contiguous values and positions, and the input.
void adaptive_max_pool(const Call& call, Requests& requests) {
  const c10::TensorImpl* input = tensor_at(call, 0);
  const auto sizes = numbers_at(call, 1, 2, 1);
  if (input == nullptr || !sizes || !is_channels_last(*input)) {
    return;
  }
  const int64_t outputs = input->size(0) * input->size(1) * (*sizes)[0] * (*sizes)[1];
  if ((*sizes)[0] != 1 || (*sizes)[1] != 1) {
    requests.outputs(2);
    requests.take(static_cast<size_t>(outputs) * input->itemsize());
    requests.take(static_cast<size_t>(outputs) * sizeof(int64_t));
  }
  requests.take(bytes_of(*input));
}

void adaptive_max_pool_backward(const Call& call, Requests& requests) {
  const c10::TensorImpl* gradient = tensor_at(call, 0);
  const c10::TensorImpl* input = tensor_at(call, 1);
  const c10::TensorImpl* indices = tensor_at(call, 2);
  if (gradient == nullptr || input == nullptr || indices == nullptr || !is_channels_last(*input)) {
    return;
  }
  requests.output(0);
  if (copy_if_strided(call, 0, requests)) {
    copy_if_strided(call, 2, requests);
  }
  requests.take(bytes_of(*input));
}

// The sum of exponentials subtracts the maximum of each row; differences and sums are in the input's type.
void logsumexp(const Call& call, Requests& requests) {
  const c10::TensorImpl* input = tensor_at(call, 0);
  if (input == nullptr || input->numel() == 0 || !at::isFloatingType(c10::typeMetaToScalarType(input->dtype()))) {
    return;
  }
  int64_t rows = 1;
  std::vector<bool> reduced(static_cast<size_t>(input->dim()), false);
  if (!call.arg(1).isIntList()) {
    return;
  }
  const std::vector<int64_t> dims = call.arg(1).toIntVector();
  for (const int64_t dim : dims) {
    const int64_t at = dim < 0 ? dim + input->dim() : dim;
    if (at < 0 || at >= input->dim()) {
      return;
    }
    reduced[static_cast<size_t>(at)] = true;
  }
  for (int64_t i = 0; i < input->dim(); ++i) {
    rows *= reduced[static_cast<size_t>(i)] ? 1 : input->size(i);
  }
  const size_t results = static_cast<size_t>(rows) * input->itemsize();
  const uint32_t maxima = requests.take(results);
  const uint32_t magnitudes = requests.take(results);
  const uint32_t infinite = requests.take(static_cast<size_t>(rows));
  requests.give_back(infinite);
  requests.give_back(magnitudes);
  const uint32_t differences = requests.take(bytes_of(*input));
  requests.output(0);
  requests.give_back(differences);
  requests.give_back(maxima);
}

// The output starts out as large as the input.
void unfold(const Call& call, Requests& requests) {
  const c10::TensorImpl* input = tensor_at(call, 0);
  if (input == nullptr) {
    return;
  }
  const uint32_t outgrown = requests.take(bytes_of(*input));
  copy_if_strided(call, 0, requests);
  requests.output(0);
  requests.give_back(outgrown);
}

// The gradient in channels_last if it suggests that and there are four channels. Otherwise in the usual layout, with a
// result that is copied to the output if that is in channels_last.
void upsample_backward(const Call& call, Requests& requests) {
  const c10::TensorImpl* gradient = tensor_at(call, 0);
  const auto sizes = numbers_at(call, 2, 4, 1);
  if (gradient == nullptr || !sizes || gradient->dim() != 4 || gradient->sizes() == c10::IntArrayRef(*sizes)) {
    return;
  }
  const bool is_last = gradient->is_strides_like(at::MemoryFormat::ChannelsLast);
  if (is_last && gradient->size(1) >= 4) {
    if (!gradient->is_contiguous(at::MemoryFormat::ChannelsLast)) {
      requests.take(bytes_of(*gradient));
    }
    return;
  }
  if (is_last) {
    requests.take(static_cast<size_t>(c10::multiply_integers(*sizes)) * gradient->itemsize());
  }
  copy_if_strided(call, 0, requests);
}

constexpr Row kRows[] = {
    {"aten::adaptive_max_pool2d", {adaptive_max_pool}},
    {"aten::adaptive_max_pool2d_backward", {adaptive_max_pool_backward}},
    {"aten::logsumexp", {logsumexp}},
    {"aten::im2col", {unfold}},
    {"aten::upsample_linear1d_backward", {contiguous_first}},
    {"aten::upsample_nearest1d_backward", {contiguous_first}},
    {"aten::_upsample_nearest_exact1d_backward", {contiguous_first}},
    {"aten::upsample_bilinear2d_backward", {upsample_backward}},
    {"aten::upsample_nearest2d_backward", {upsample_backward}},
    {"aten::_upsample_nearest_exact2d_backward", {upsample_backward}},
    {"aten::upsample_bicubic2d_backward", {contiguous_first}},
    {"aten::upsample_trilinear3d_backward", {contiguous_first}},
    {"aten::upsample_nearest3d_backward", {contiguous_first}},
    {"aten::_upsample_nearest_exact3d_backward", {contiguous_first}},
    {"aten::native_dropout", {native_dropout}},
    {"aten::_fused_dropout", {mask_before_output}},
    {"aten::_softmax", {contiguous_first}},
    {"aten::_log_softmax", {contiguous_first}},
    {"aten::_softmax_backward_data", {softmax_backward}},
    {"aten::_log_softmax_backward_data", {contiguous_first_two}},
    {"aten::native_layer_norm", {layer_norm}},
    {"aten::native_layer_norm_backward", {layer_norm_backward}},
    {"aten::cudnn_batch_norm", {cudnn_batch_norm}},
    {"aten::cudnn_batch_norm_backward", {cudnn_batch_norm_backward}},
    {"aten::native_batch_norm", {batch_norm}},
    {"aten::_native_batch_norm_legit", {batch_norm}},
    {"aten::native_batch_norm_backward", {batch_norm_backward}},
    {"aten::native_group_norm", {group_norm}},
    {"aten::native_group_norm_backward", {group_norm_backward}},
};

}  // namespace

c10::ArrayRef<Row> normalization_rows() {
  return kRows;
}

}  // namespace torchfake::side_memory
