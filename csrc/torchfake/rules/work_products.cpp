// The work of products: matrices, convolutions, attention, recurrent networks.
#include <torchfake/rules/work_rows.h>

#include <algorithm>
#include <limits>

namespace torchfake::work_rows {

namespace {

using work::Family;
using work::FinishedCall;
using work::saturating_product;
using work::Work;

int64_t product(std::initializer_list<int64_t> factors) {
  int64_t all = 1;
  for (const int64_t factor : factors) {
    all = saturating_product(all, factor);
  }
  return all;
}

void set_flops(Work& work, int64_t flops) {
  work.flops = work.least_flops = flops;
}

constexpr int64_t kAlignment = 8;

// Whether rows, or columns if these are contiguous, begin at multiples of the alignment.
bool is_aligned(const c10::TensorImpl& matrix) {
  const int64_t dim = matrix.dim();
  return dim >= 2 && std::max(matrix.stride(dim - 1), matrix.stride(dim - 2)) % kAlignment == 0;
}

// ---- Matrices

// The rows of the first factor (all dimensions but the last) times the elements of the second without its batch.
template <size_t kFirst>
void matrices(const FinishedCall& call, Work& work) {
  if (!call.arguments[kFirst].isTensor() || !call.arguments[kFirst + 1].isTensor()) {
    return;
  }
  const c10::TensorImpl& a = *call.arguments[kFirst].toTensor().unsafeGetTensorImpl();
  const c10::TensorImpl& b = *call.arguments[kFirst + 1].toTensor().unsafeGetTensorImpl();
  work.dtype = c10::typeMetaToScalarType(a.dtype());
  const int64_t columns = b.dim() >= 2 ? b.size(b.dim() - 1) : 1;
  work.is_aligned = is_aligned(a) && is_aligned(b) && columns % kAlignment == 0;
  set_flops(work, product({2, a.numel(), columns}));
}

// Groups of rows, each multiplied by its own matrix, or groups of columns: every row is multiplied by one matrix.
void grouped(const FinishedCall& call, Work& work) {
  const c10::TensorImpl* a = call.find_tensor("self");
  const c10::TensorImpl* b = call.find_tensor("mat2");
  if (a == nullptr || b == nullptr) {
    return;
  }
  work.dtype = c10::typeMetaToScalarType(a->dtype());
  set_flops(work, product({2, a->numel(), b->size(b->dim() - 1)}));
  if (a->dim() == 3 && b->dim() == 2) {  // each column of b belongs to one group
    set_flops(work, product({2, a->size(1), b->numel()}));
  }
}

// ---- Convolutions

int64_t positions(const c10::TensorImpl& tensor) {
  int64_t count = tensor.size(0);
  for (int64_t i = 2; i < tensor.dim(); ++i) {
    count = saturating_product(count, tensor.size(i));
  }
  return count;
}

bool has_aligned_channels(const c10::TensorImpl& weight) {
  return weight.size(0) % kAlignment == 0 && weight.size(1) % kAlignment == 0;
}

// Every weight is used once per position of the output, or of the input for a transposed convolution.
void convolution(const FinishedCall& call, Work& work) {
  const c10::TensorImpl* input = call.find_tensor(call.find("input") != nullptr ? "input" : "self");
  const c10::TensorImpl* weight = call.find_tensor("weight");
  const c10::TensorImpl* output = call.output();
  if (input == nullptr || weight == nullptr || output == nullptr) {
    return;
  }
  const c10::IValue* transposed = call.find("transposed");
  const bool is_transposed = (transposed != nullptr && transposed->toBool()) ||
      call.traits.base_name().find("transpose") != std::string_view::npos;
  work.is_aligned = has_aligned_channels(*weight);
  const bool is_single = output->dim() < weight->dim();  // an unbatched input
  const int64_t count = is_single ? 0 : positions(is_transposed ? *input : *output);
  set_flops(work, product({2, count, weight->numel()}));
}

void convolution_backward(const FinishedCall& call, Work& work) {
  const c10::TensorImpl* gradient = call.find_tensor("grad_output");
  const c10::TensorImpl* input = call.find_tensor("input");
  const c10::TensorImpl* weight = call.find_tensor("weight");
  const c10::IValue* transposed = call.find("transposed");
  const c10::IValue* mask = call.find("output_mask");
  if (gradient == nullptr || input == nullptr || weight == nullptr || mask == nullptr || !mask->isBoolList()) {
    return;
  }
  const bool is_transposed = transposed != nullptr && transposed->toBool();
  const c10::List<bool> wanted = mask->toBoolList();
  work.is_aligned = has_aligned_channels(*weight);
  const int64_t products = int64_t{wanted.get(0)} + int64_t{wanted.get(1)};
  set_flops(work, product({2, products, positions(is_transposed ? *input : *gradient), weight->numel()}));
  work.launches = static_cast<int32_t>(products + int64_t{wanted.get(2)});
}

// ---- Attention

struct Heads {
  int64_t pairs = 0;  // the number of (query, key) pairs, over batch and heads
  int64_t depth = 0;  // the head size of queries and keys
  int64_t value_depth = 0;
};

// Tensors are [batch, heads, length, depth], or [batch, length, heads, depth].
Heads heads_of(const FinishedCall& call, int64_t head, int64_t length) {
  const c10::TensorImpl* query = call.find_tensor("query");
  const c10::TensorImpl* key = call.find_tensor("key");
  const c10::TensorImpl* value = call.find_tensor("value");
  if (query == nullptr || key == nullptr || value == nullptr || query->dim() != 4 || key->dim() != 4) {
    return {};  // packed sequences: their lengths are data
  }
  return {
      product({query->size(0), query->size(head), query->size(length), key->size(length)}),
      query->size(3),
      value->size(3)};
}

// Two products in the forward pass; five in the backward pass, which recomputes the scores.
void attention(const FinishedCall& call, Work& work, const Heads& heads, bool is_backward) {
  const int64_t by_depth = is_backward ? 3 : 1;
  const int64_t by_value_depth = is_backward ? 2 : 1;
  const int64_t depth = by_depth * heads.depth + by_value_depth * heads.value_depth;
  work.flops = product({2, heads.pairs, depth});
  const c10::IValue* causal = call.find("is_causal");
  const c10::IValue* mask_type = call.find("custom_mask_type");
  const bool is_causal = (causal != nullptr && causal->isBool() && causal->toBool()) ||
      (mask_type != nullptr && mask_type->isInt() && mask_type->toInt() != 0);
  work.least_flops = is_causal ? work.flops / 2 : work.flops;
  work.launches = is_backward ? 3 : 1;
}

template <bool kIsBackward>
void attention_of_heads(const FinishedCall& call, Work& work) {
  attention(call, work, heads_of(call, 1, 2), kIsBackward);
}

template <bool kIsBackward>
void attention_of_positions(const FinishedCall& call, Work& work) {
  attention(call, work, heads_of(call, 2, 1), kIsBackward);
}

// ---- Recurrent networks

// The length of the longest sequence: one step of a layer waits for the previous one.
int64_t steps_of(const FinishedCall& call, const c10::TensorImpl& input) {
  const c10::IValue* packed = call.find("batch_sizes");
  if (packed != nullptr && packed->isIntList() && !packed->toIntList().empty()) {
    return static_cast<int64_t>(packed->toIntList().size());
  }
  const c10::IValue* batch_first = call.find("batch_first");
  return input.size(batch_first != nullptr && batch_first->toBool() ? 1 : 0);
}

// Whether one kernel runs all steps of a layer, as recorded with cuDNN 9.19 on an H200. See the recording of
// tools/record_step_time.py.
bool is_persistent(const FinishedCall& call, int64_t steps, bool is_backward) {
  const c10::IValue* hidden = call.find("hidden_size");
  const c10::TensorImpl* input = call.find_tensor("input");
  const c10::ScalarType dtype = c10::typeMetaToScalarType(input->dtype());
  return hidden != nullptr && hidden->isInt() && hidden->toInt() <= (is_backward ? 128 : 192) && steps > 1 &&
      (dtype == c10::kFloat || dtype == c10::kHalf);
}

// Every weight is used once per step and sequence. The biases, which are few, are counted as weights. A step of a layer
// takes two kernels, of the product and of the gates, or there are two for all steps.
template <int kPasses>
void recurrent(const FinishedCall& call, Work& work) {
  const c10::TensorImpl* input = call.find_tensor("input");
  const c10::IValue* weights = call.find("weight");
  if (input == nullptr || weights == nullptr || !weights->isTensorList() || input->dim() < 2) {
    return;
  }
  const int64_t positions = input->dim() == 3 ? saturating_product(input->size(0), input->size(1)) : input->size(0);
  int64_t elements = 0;
  int64_t matrices = 0;
  for (const at::Tensor& weight : weights->toTensorVector()) {
    elements += weight.dim() == 2 ? weight.unsafeGetTensorImpl()->numel() : 0;
    matrices += weight.dim() == 2 ? 1 : 0;
  }
  set_flops(work, product({2, kPasses, positions, elements}));
  // Two matrices per layer and direction: those of the input and of the state.
  const int64_t steps = steps_of(call, *input);
  const int64_t launches =
      product({is_persistent(call, steps, kPasses == 2) ? 1 : steps, std::max<int64_t>(matrices, 1)});
  work.launches = static_cast<int32_t>(std::min<int64_t>(launches, std::numeric_limits<int32_t>::max()));
}

constexpr Row kRows[] = {
    {"aten::mm", {Family::kMatmul, matrices<0>}},
    {"aten::bmm", {Family::kMatmul, matrices<0>}},
    {"aten::mv", {Family::kMatmul, matrices<0>}},
    {"aten::dot", {Family::kMatmul, matrices<0>}},
    {"aten::vdot", {Family::kMatmul, matrices<0>}},
    {"aten::addmm", {Family::kMatmul, matrices<1>}},
    {"aten::addmm_", {Family::kMatmul, matrices<1>}},
    {"aten::_addmm_activation", {Family::kMatmul, matrices<1>}},
    {"aten::baddbmm", {Family::kMatmul, matrices<1>}},
    {"aten::baddbmm_", {Family::kMatmul, matrices<1>}},
    {"aten::addbmm", {Family::kMatmul, matrices<1>}},
    {"aten::addbmm_", {Family::kMatmul, matrices<1>}},
    {"aten::addmv", {Family::kMatmul, matrices<1>}},
    {"aten::addmv_", {Family::kMatmul, matrices<1>}},
    {"aten::_scaled_mm", {Family::kMatmul, matrices<0>}},
    {"aten::_scaled_mm_v2", {Family::kMatmul, matrices<0>}},
    {"aten::_int_mm", {Family::kMatmul, matrices<0>}},
    {"aten::_grouped_mm", {Family::kMatmul, grouped}},
    {"aten::_scaled_grouped_mm", {Family::kMatmul, grouped}},
    {"aten::convolution", {Family::kConvolution, convolution}},
    {"aten::_convolution", {Family::kConvolution, convolution}},
    {"aten::convolution_overrideable", {Family::kConvolution, convolution}},
    {"aten::cudnn_convolution", {Family::kConvolution, convolution}},
    {"aten::cudnn_convolution_transpose", {Family::kConvolution, convolution}},
    {"aten::cudnn_convolution_relu", {Family::kConvolution, convolution}},
    {"aten::cudnn_convolution_add_relu", {Family::kConvolution, convolution}},
    {"aten::mkldnn_convolution", {Family::kConvolution, convolution}},
    {"aten::_slow_conv2d_forward", {Family::kConvolution, convolution}},
    {"aten::slow_conv3d_forward", {Family::kConvolution, convolution}},
    {"aten::_conv_depthwise2d", {Family::kConvolution, convolution}},
    {"aten::conv_depthwise3d", {Family::kConvolution, convolution}},
    {"aten::convolution_backward", {Family::kConvolution, convolution_backward}},
    {"aten::_scaled_dot_product_flash_attention", {Family::kAttention, attention_of_heads<false>}},
    {"aten::_scaled_dot_product_flash_attention_for_cpu", {Family::kAttention, attention_of_heads<false>}},
    {"aten::_scaled_dot_product_efficient_attention", {Family::kAttention, attention_of_heads<false>}},
    {"aten::_scaled_dot_product_cudnn_attention", {Family::kAttention, attention_of_heads<false>}},
    {"aten::_flash_attention_forward", {Family::kAttention, attention_of_positions<false>}},
    {"aten::_efficient_attention_forward", {Family::kAttention, attention_of_positions<false>}},
    {"aten::_scaled_dot_product_flash_attention_backward", {Family::kAttention, attention_of_heads<true>}},
    {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", {Family::kAttention, attention_of_heads<true>}},
    {"aten::_scaled_dot_product_efficient_attention_backward", {Family::kAttention, attention_of_heads<true>}},
    {"aten::_scaled_dot_product_cudnn_attention_backward", {Family::kAttention, attention_of_heads<true>}},
    {"aten::_flash_attention_backward", {Family::kAttention, attention_of_positions<true>}},
    {"aten::_efficient_attention_backward", {Family::kAttention, attention_of_positions<true>}},
    {"aten::_cudnn_rnn", {Family::kRecurrent, recurrent<1>}},
    {"aten::_cudnn_rnn_backward", {Family::kRecurrent, recurrent<2>}},
};

}  // namespace

c10::ArrayRef<Row> product_rows() {
  return kRows;
}

}  // namespace torchfake::work_rows
