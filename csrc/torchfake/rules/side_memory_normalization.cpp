// Temporary memory of normalisation, softmax, dropout and pooling.
#include <torchfake/rules/side_memory.h>

#include <algorithm>

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
  if (mask_at(call, 10, 0)) {
    const auto by_group = static_cast<size_t>(*batch * std::min(*groups, *channels)) * accumulator;
    requests.take(by_group);
    requests.take(by_group);
    requests.take(by_channel);
  }
}

constexpr Row kRows[] = {
    {"aten::native_dropout", {native_dropout}},
    {"aten::_fused_dropout", {mask_before_output}},
    {"aten::_softmax", {contiguous_first}},
    {"aten::_log_softmax", {contiguous_first}},
    {"aten::_softmax_backward_data", {softmax_backward}},
    {"aten::_log_softmax_backward_data", {contiguous_first_two}},
    {"aten::native_layer_norm", {layer_norm}},
    {"aten::native_layer_norm_backward", {layer_norm_backward}},
    {"aten::native_group_norm", {group_norm}},
    {"aten::native_group_norm_backward", {group_norm_backward}},
};

}  // namespace

c10::ArrayRef<Row> normalization_rows() {
  return kRows;
}

}  // namespace torchfake::side_memory
