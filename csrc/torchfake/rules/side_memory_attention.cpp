// Temporary memory of scaled dot product attention.
#include <torchfake/rules/side_memory.h>

#include <algorithm>
#include <cmath>

namespace torchfake::side_memory {

namespace {

// Kernels read gradients and outputs with heads inside rows in memory; another layout is copied. Returns whether it is.
bool copy_unless_heads_are_inside(const c10::TensorImpl* tensor, Requests& requests) {
  if (tensor == nullptr || tensor->dim() != 4) {
    return false;
  }
  const int64_t width = tensor->size(3);
  const int64_t heads = tensor->size(1);
  const int64_t rows = tensor->size(2);
  const auto lies = [&](int64_t dim, int64_t stride) {
    return tensor->size(dim) == 1 || tensor->stride(dim) == stride;
  };
  if (lies(3, 1) && lies(1, width) && lies(2, width * heads) && lies(0, width * heads * rows)) {
    return false;
  }
  requests.take(bytes_of(*tensor));
  return true;
}

struct Attention {
  const c10::TensorImpl* query;
  const c10::TensorImpl* key;
  int64_t heads;  // of the whole batch
  int64_t rows;
  int64_t width;
  int64_t columns;
  int64_t value_width;
};

// The attention whose query, key and value are the arguments from `first` on.
std::optional<Attention> attention_at(const Call& call, size_t first) {
  const c10::TensorImpl* query = tensor_at(call, first);
  const c10::TensorImpl* key = tensor_at(call, first + 1);
  const c10::TensorImpl* value = tensor_at(call, first + 2);
  for (const c10::TensorImpl* tensor : {query, key, value}) {
    if (tensor == nullptr || tensor->dim() != 4 || tensor->numel() == 0) {
      return std::nullopt;
    }
  }
  return Attention{
      query, key, query->size(0) * query->size(1), query->size(2), query->size(3), key->size(2), value->size(3)};
}

// The output in float32, where the kernel cannot keep a row of it in registers.
void efficient_attention(const Call& call, Requests& requests) {
  constexpr int64_t kWidestInRegisters = 128;
  const auto a = attention_at(call, 0);
  if (a && a->query->itemsize() < 4 && std::max(a->width, a->value_width) > kWidestInRegisters) {
    requests.outputs(2);
    requests.take(static_cast<size_t>(a->heads * a->rows * a->value_width) * sizeof(float));
  }
}

// The gradients that blocks of queries and keys accumulate in float32. A tile of the queries' is followed by a lock and
// a counter.
size_t accumulated_gradients(const Attention& a) {
  constexpr int64_t kLocks = 16;
  const int64_t widest = std::max(a.width, a.value_width);
  const bool half = a.query->itemsize() < 4;
  const int64_t queries = widest <= 64 ? 64 : 128;  // of a block
  const int64_t keys = half && widest > 64 && widest <= 128 ? 128 : 64;
  const int64_t tiles = div_up(a.rows, queries) * div_up(a.width, keys);
  int64_t bytes = tiles * (queries * keys * static_cast<int64_t>(sizeof(float)) + kLocks);
  if (half && widest > 128) {
    // Gradients of keys and values, by part of the keys.
    int64_t parts = a.heads >= 256 && a.columns <= 2 * keys ? 1 : div_up(a.columns, keys);
    parts = std::max<int64_t>(1, std::min(parts, 200 / a.heads));
    const int64_t widths = (div_up(a.width, queries) + div_up(a.value_width, queries)) * queries;
    bytes += parts * keys * widths * static_cast<int64_t>(sizeof(float));
  }
  return static_cast<size_t>(a.heads * bytes);
}

// The sum over each row of gradient times output, in float32, which kernels for half precision compute themselves.
void efficient_attention_backward(const Call& call, Requests& requests) {
  const c10::TensorImpl* gradient = tensor_at(call, 0);
  const auto a = attention_at(call, 1);
  if (!a || gradient == nullptr) {
    return;
  }
  if (copy_unless_heads_are_inside(gradient, requests)) {
    requests.outputs(4);
  }
  const size_t row_sums = static_cast<size_t>(a->heads * a->rows) * sizeof(float);
  uint32_t sums = 0;
  if (a->query->itemsize() < 4) {
    sums = requests.take(row_sums);
  } else {
    const uint32_t product = requests.take(static_cast<size_t>(gradient->numel()) * sizeof(float));
    sums = requests.take(row_sums);
    if (a->query->size(1) > 1 && a->rows > 1) {
      const uint32_t by_row = sums;
      sums = requests.take(row_sums);  // by head
      requests.give_back(by_row);
    }
    requests.give_back(product);
  }
  const uint32_t gradients = requests.take(accumulated_gradients(*a));
  requests.give_back(sums);
  requests.give_back(gradients);
}

// The outputs that hold the state of the random numbers, counting tensors only.
constexpr uint32_t kSeed = 4;
constexpr uint32_t kOffset = 5;

// The state of the random numbers, then a descriptor for more than one row.
void cudnn_attention(const Call& call, Requests& requests) {
  constexpr size_t kDescriptor = 256;
  const auto a = attention_at(call, 0);
  if (!a) {
    return;
  }
  for (const uint32_t output : {kSeed, kOffset, 0U, 1U}) {
    requests.output(output);
  }
  if (a->rows > 1) {
    requests.take(kDescriptor);
  }
}

// The gradient of the queries in float32, row sums, and a descriptor. If several heads share a key, also the gradients of
// keys and values by head.
void cudnn_attention_backward(const Call& call, Requests& requests) {
  if (const auto a = attention_at(call, 1)) {
    const int64_t rows = a->heads * a->rows;
    const int64_t shared =
        a->key->size(1) < a->query->size(1) ? a->heads * a->columns * (a->width + a->value_width) : 0;
    requests.take(
        static_cast<size_t>(rows * a->width + rows) * sizeof(float) +
        static_cast<size_t>(shared) * a->query->itemsize() + 256);
  }
}

int64_t padded_width(const Attention& a) {
  const int64_t step = a.width <= 128 ? 32 : 64;
  return div_up(a.width, step) * step;
}

// The number of parts into which flash attention splits the keys, so that few heads and rows occupy the card.
int64_t flash_parts(const Attention& a) {
  constexpr int64_t kMostParts = 128;
  constexpr double kGoodEnough = 0.85;
  const int64_t columns = a.width <= 64 ? 256 : a.width <= 128 ? 128 : 64;  // of a block
  const int64_t blocks = div_up(a.columns, columns);
  const auto slots = static_cast<double>(2 * kMultiprocessors);
  // The queries of a group share a block if they have a single row.
  const bool by_group = a.rows == 1 && a.key->size(1) < a.query->size(1);
  const auto occupied = static_cast<double>(by_group ? a.key->size(0) * a.key->size(1) : a.heads * div_up(a.rows, 64));
  if (occupied >= 0.8 * slots) {
    return 1;
  }
  std::vector<double> efficiency;
  for (int64_t parts = 1; parts <= std::min({kMostParts, 2 * kMultiprocessors, blocks}); ++parts) {
    const bool divides = parts == 1 || div_up(blocks, parts) != div_up(blocks, parts - 1);
    const double waves = occupied * static_cast<double>(parts) / slots;
    efficiency.push_back(divides ? waves / std::ceil(waves) : 0);
  }
  const double best = *std::max_element(efficiency.begin(), efficiency.end());
  const auto chosen =
      std::find_if(efficiency.begin(), efficiency.end(), [&](double e) { return e > 0 && e >= kGoodEnough * best; });
  return chosen - efficiency.begin() + 1;
}

// With dropout, a seed that is not kept; without, the parts of a split over the keys.
void flash_attention(const Call& call, Requests& requests) {
  constexpr size_t kUnusedSeed = 16;
  const auto a = attention_at(call, 0);
  if (!a || call.num_args() < 4) {
    return;
  }
  const bool drops = call.arg(3).isDouble() && call.arg(3).toDouble() > 0;
  const int64_t parts = drops ? 1 : flash_parts(*a);
  if (!drops && parts == 1) {
    return;
  }
  requests.outputs(2);
  if (drops) {
    requests.take(kUnusedSeed);
    requests.output(kOffset);
    requests.output(kSeed);
    return;
  }
  const int64_t rows = parts * a->heads * a->rows;
  const uint32_t sums = requests.take(static_cast<size_t>(rows) * sizeof(float));
  const uint32_t outputs = requests.take(static_cast<size_t>(rows * padded_width(*a)) * sizeof(float));
  requests.output(kSeed);
  requests.output(kOffset);
  requests.give_back(sums);
  requests.give_back(outputs);
}

void flash_attention_backward(const Call& call, Requests& requests) {
  constexpr size_t kOutput = 4;
  const auto a = attention_at(call, 1);
  if (!a) {
    return;
  }
  const bool copies_gradient = copy_unless_heads_are_inside(tensor_at(call, 0), requests);
  const bool copies_output = copy_unless_heads_are_inside(tensor_at(call, kOutput), requests);
  if (copies_gradient || copies_output) {
    requests.outputs(3);
  }
  const int64_t rows = a->heads * div_up(a->rows, 128) * 128;
  requests.take(static_cast<size_t>(rows) * sizeof(float));
  requests.take(static_cast<size_t>(rows * padded_width(*a)) * sizeof(float));
  if (a->key->size(1) != a->query->size(1)) {
    // Gradients of keys and values by the query's heads, before they are summed.
    const auto expanded = static_cast<size_t>(a->heads * a->columns * a->width) * a->key->itemsize();
    requests.take(expanded);
    requests.take(expanded);
  }
}

// Rows without any finite score become zero: which scores are -inf, which rows have only these, and the zero.
void safe_softmax(const Call& call, Requests& requests) {
  const c10::TensorImpl* scores = tensor_at(call, 0);
  if (scores == nullptr || scores->numel() == 0 || scores->dim() == 0 || !call.arg(1).isInt()) {
    return;
  }
  const int64_t dim = call.arg(1).toInt();
  const int64_t at = dim < 0 ? dim + scores->dim() : dim;
  if (at < 0 || at >= scores->dim()) {
    return;
  }
  requests.output(0);
  requests.take(static_cast<size_t>(scores->numel()));
  requests.take(static_cast<size_t>(scores->numel() / scores->size(at)));
  requests.take(scores->itemsize());
}

// Of a sequence, and the width inside a layer, so that products do not overflow.
constexpr int64_t kLongest = int64_t{1} << 20;

// The self-attention of the fast path in inference, from src to its projection.
struct SelfAttention {
  const c10::TensorImpl* source;
  int64_t heads;
  bool is_fused;  // by a kernel of scaled dot product attention
  bool keeps_weights;

  // `project` takes the projection of the result.
  template <typename Project>
  void take(Requests& requests, const Project& project) const {
    const size_t bytes = bytes_of(*source);
    const auto weights = static_cast<size_t>(source->size(0) * heads * source->size(1) * source->size(1));
    const uint32_t joint = requests.take(3 * bytes);
    if (is_fused) {
      const uint32_t attended = requests.take(bytes);
      project();
      requests.give_back(attended);
      requests.give_back(joint);
      return;
    }
    const uint32_t separate = requests.take(3 * bytes);  // the result takes the place of the queries
    requests.give_back(joint);
    const uint32_t scores = requests.take(weights * source->itemsize());
    const uint32_t softmax = requests.take(weights * source->itemsize());
    requests.give_back(scores);
    if (!keeps_weights) {
      requests.give_back(softmax);
    }
    const uint32_t transposed = requests.take(bytes);
    project();
    requests.give_back(transposed);
    if (keeps_weights) {
      requests.output(1);
      requests.give_back(softmax);
    }
    requests.give_back(separate);
  }
};

// Nothing for nested tensors, and arguments that the operator refuses.
std::optional<SelfAttention> self_attention_at(const Call& call, size_t heads, bool is_fused, bool keeps_weights) {
  const c10::TensorImpl* source = tensor_at(call, 0);
  const auto count = number_at(call, heads);
  if (source == nullptr || !count || source->dim() != 3 || source->numel() == 0 || *count > source->size(2) ||
      source->size(1) > kLongest) {
    return std::nullopt;
  }
  return SelfAttention{source, *count, is_fused && source->itemsize() < 8, keeps_weights};
}

void multi_head_attention(const Call& call, Requests& requests) {
  const bool is_one = tensor_at(call, 0) == tensor_at(call, 1) && tensor_at(call, 1) == tensor_at(call, 2);
  const bool keeps_weights = flag_at(call, 10);
  const bool is_fused = is_one && !keeps_weights && call.arg(9).isNone();
  if (const auto attention = self_attention_at(call, 4, is_fused, keeps_weights && flag_at(call, 11))) {
    attention->take(requests, [&] { requests.output(0); });
  }
}

// A whole layer: attention, two normalisations and a perceptron. Sums with what goes around them are in place.
void encoder_layer(const Call& call, Requests& requests) {
  const auto attention = self_attention_at(call, 2, call.arg(18).isNone(), false);
  const c10::TensorImpl* inner = tensor_at(call, 14);
  if (!attention || inner == nullptr || inner->dim() != 2 || inner->size(0) > kLongest) {
    return;
  }
  const size_t bytes = bytes_of(*attention->source);
  const auto rows = static_cast<size_t>(attention->source->size(0) * attention->source->size(1));
  const size_t wide = rows * static_cast<size_t>(inner->size(0)) * attention->source->itemsize();
  const auto statistics = [&] {
    const uint32_t mean = requests.take(rows * sizeof(float));
    requests.give_back(requests.take(rows * sizeof(float)));
    requests.give_back(mean);
  };
  uint32_t first = 0;
  uint32_t projected = 0;
  const auto normalise = [&] {
    const uint32_t normal = requests.take(bytes);
    statistics();
    return normal;
  };
  const auto project = [&] { projected = requests.take(bytes); };
  if (flag_at(call, 8)) {  // the normalisations come first
    first = normalise();
    attention->take(requests, project);
    requests.give_back(first);
    const uint32_t second = normalise();
    const uint32_t hidden = requests.take(wide);
    requests.output(0);
    requests.give_back(hidden);
    requests.give_back(second);
    requests.give_back(projected);
    return;
  }
  attention->take(requests, project);
  first = normalise();
  requests.give_back(projected);
  const uint32_t hidden = requests.take(wide);
  const uint32_t narrow = requests.take(bytes);
  requests.give_back(hidden);
  requests.output(0);
  statistics();
  requests.give_back(narrow);
  requests.give_back(first);
}

constexpr Row kRows[] = {
    {"aten::_native_multi_head_attention", {multi_head_attention, memory::Workspace::kBlasLt}},
    {"aten::_transformer_encoder_layer_fwd", {encoder_layer, memory::Workspace::kBlasLt}},
    {"aten::_scaled_dot_product_efficient_attention", {efficient_attention}},
    {"aten::_scaled_dot_product_efficient_attention_backward", {efficient_attention_backward}},
    {"aten::_scaled_dot_product_cudnn_attention", {cudnn_attention}},
    {"aten::_scaled_dot_product_cudnn_attention_backward", {cudnn_attention_backward}},
    {"aten::_scaled_dot_product_flash_attention", {flash_attention}},
    {"aten::_scaled_dot_product_flash_attention_backward", {flash_attention_backward}},
    {"aten::_safe_softmax", {safe_softmax}},
};

}  // namespace

c10::ArrayRef<Row> attention_rows() {
  return kRows;
}

}  // namespace torchfake::side_memory
