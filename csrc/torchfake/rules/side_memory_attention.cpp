// Temporary memory of scaled dot product attention.
#include <torchfake/rules/side_memory.h>

namespace torchfake::side_memory {

namespace {

// Kernels read the gradient of the output with heads inside rows in memory; another layout is copied. Returns whether
// it is.
bool copy_unless_heads_are_inside(const c10::TensorImpl& gradient, Requests& requests) {
  const int64_t width = gradient.size(3);
  const int64_t heads = gradient.size(1);
  const int64_t rows = gradient.size(2);
  const auto lies = [&](int64_t dim, int64_t stride) {
    return gradient.size(dim) == 1 || gradient.stride(dim) == stride;
  };
  if (lies(3, 1) && lies(1, width) && lies(2, width * heads) && lies(0, width * heads * rows)) {
    return false;
  }
  requests.take(bytes_of(gradient));
  return true;
}

struct Backward {
  const c10::TensorImpl* gradient;
  const c10::TensorImpl* query;
  int64_t heads;  // of the whole batch
  int64_t rows;
  int64_t width;
};

std::optional<Backward> backward_of(const Call& call) {
  const c10::TensorImpl* gradient = tensor_at(call, 0);
  const c10::TensorImpl* query = tensor_at(call, 1);
  if (gradient == nullptr || query == nullptr || query->dim() != 4 || gradient->dim() != 4 || query->numel() == 0) {
    return std::nullopt;
  }
  return Backward{gradient, query, query->size(0) * query->size(1), query->size(2), query->size(3)};
}

// The sum over each row of gradient times output, in float32, and the accumulated gradient of the queries in blocks of
// 64. Half-precision kernels compute the sum themselves.
void efficient_attention_backward(const Call& call, Requests& requests) {
  const auto backward = backward_of(call);
  if (!backward) {
    return;
  }
  if (copy_unless_heads_are_inside(*backward->gradient, requests)) {
    requests.outputs(4);
  }
  const size_t row_sums = static_cast<size_t>(backward->heads * backward->rows) * sizeof(float);
  if (backward->query->itemsize() < 4) {
    requests.take(row_sums);
  } else {
    const uint32_t product = requests.take(static_cast<size_t>(backward->gradient->numel()) * sizeof(float));
    const uint32_t sums = requests.take(row_sums);
    requests.take(row_sums);
    requests.give_back(product);
    requests.give_back(sums);
  }
  const int64_t blocks = backward->heads * div_up(backward->rows, 64);
  requests.take(static_cast<size_t>(blocks * (64 * backward->width * 4 + 16)));
}

// The gradient of the queries in float32, row sums, and a descriptor.
void cudnn_attention_backward(const Call& call, Requests& requests) {
  if (const auto backward = backward_of(call)) {
    const int64_t rows = backward->heads * backward->rows;
    requests.take(static_cast<size_t>(rows * backward->width + rows) * sizeof(float) + 256);
  }
}

void flash_attention_backward(const Call& call, Requests& requests) {
  const auto backward = backward_of(call);
  if (!backward) {
    return;
  }
  if (copy_unless_heads_are_inside(*backward->gradient, requests)) {
    requests.outputs(3);
  }
  const int64_t rows = backward->heads * div_up(backward->rows, 128) * 128;
  const int64_t step = backward->width <= 128 ? 32 : 64;
  requests.take(static_cast<size_t>(rows) * sizeof(float));
  requests.take(static_cast<size_t>(rows * div_up(backward->width, step) * step) * sizeof(float));
}

constexpr Row kRows[] = {
    {"aten::_scaled_dot_product_efficient_attention_backward", {efficient_attention_backward}},
    {"aten::_scaled_dot_product_cudnn_attention_backward", {cudnn_attention_backward}},
    {"aten::_scaled_dot_product_flash_attention_backward", {flash_attention_backward}},
};

}  // namespace

c10::ArrayRef<Row> attention_rows() {
  return kRows;
}

}  // namespace torchfake::side_memory
