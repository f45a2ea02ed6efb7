// Temporary memory of sorting, selecting, moving and scattering: CUB's buffers, and copied indices.
#include <torchfake/rules/side_memory.h>

#include <algorithm>
#include <bit>

namespace torchfake::side_memory {

namespace {

constexpr size_t kIndex = 8;
constexpr int64_t kSortedInPlace = 4096;  // rows up to this size are sorted without buffers

// The size of the dimension named by an argument; 1 for a tensor without dimensions, nothing for an invalid dimension.
std::optional<int64_t> size_along(const Call& call, const c10::TensorImpl& tensor, size_t arg) {
  if (tensor.dim() == 0) {
    return 1;
  }
  if (!call.arg(arg).isInt()) {
    return std::nullopt;
  }
  const int64_t dim = call.arg(arg).toInt();
  const int64_t at = dim < 0 ? dim + tensor.dim() : dim;
  return at >= 0 && at < tensor.dim() ? std::optional(tensor.size(at)) : std::nullopt;
}

// The bits of the numbers below `count`.
size_t bits_of(int64_t count) {
  return static_cast<size_t>(std::bit_width(static_cast<uint64_t>(std::max<int64_t>(count, 1))));
}

// Sorts rows of `row` elements, `count` in all; the memory of values and indices is already allocated.
void sort_rows(int64_t count, int64_t row, size_t itemsize, Requests& requests) {
  constexpr int64_t kFewRows = 128;
  constexpr int64_t kLongRow = 1'000'000;
  if (row <= kSortedInPlace) {
    return;
  }
  const int64_t rows = count / row;
  const auto indices = static_cast<size_t>(count) * kIndex;
  if (rows == 1 || row >= kLongRow) {
    requests.take(static_cast<size_t>(row) * kIndex);
    radix_sort(row, itemsize, kIndex, 8 * itemsize, requests);
  } else if (rows < kFewRows) {
    // Sorted as a single row with the row number as part of the value, then by row.
    requests.take(indices);
    requests.take(indices);
    const uint32_t keys = requests.take(static_cast<size_t>(count) * itemsize);
    radix_sort(count, itemsize, kIndex, 8 * itemsize, requests);
    requests.give_back(keys);
    radix_sort(count, kIndex, kIndex, bits_of(rows), requests);
  } else {
    requests.take(indices);
    requests.take(static_cast<size_t>(count) * (itemsize + kIndex) + 255);
  }
}

template <size_t kDim>
void sort(const Call& call, Requests& requests) {
  const c10::TensorImpl* input = tensor_at(call, 0);
  if (input == nullptr || input->numel() == 0) {
    return;
  }
  const auto row = size_along(call, *input, kDim);
  if (!row || *row == 0) {
    return;
  }
  if (*row <= kSortedInPlace) {
    requests.take(static_cast<size_t>(*row) * kIndex);  // the positions in a row
    return;
  }
  // Rows must be contiguous.
  const int64_t dim = call.arg(kDim).toInt();
  if (input->stride(dim < 0 ? dim + input->dim() : dim) != 1) {
    requests.take(bytes_of(*input));
    requests.take(bytes_of(*input));
    requests.take(static_cast<size_t>(input->numel()) * kIndex);
  }
  sort_rows(input->numel(), *row, input->itemsize(), requests);
}

// Whether several thread blocks share a row.
bool selects_by_blocks(int64_t rows, int64_t row) {
  struct Step {
    int64_t rows, row;
  };
  constexpr Step kSteps[] = {{20, 20000}, {40, 10000}, {80, 8000}, {199, 5000}, {799, 3000}, {4000, 800}};
  for (const Step& step : kSteps) {
    if (rows <= step.rows) {
      return row >= step.row;
    }
  }
  return row >= 400;
}

void topk(const Call& call, Requests& requests) {
  constexpr int64_t kThreads = 256;
  constexpr int64_t kDigits = 256;
  constexpr size_t kScanByKey = 1279;
  constexpr int64_t kBlocksPerMultiprocessor = 65536 / (40 * kThreads);  // limited by registers
  const c10::TensorImpl* input = tensor_at(call, 0);
  const auto k = number_at(call, 1);
  if (input == nullptr || input->numel() == 0 || !k) {
    return;
  }
  const auto row = size_along(call, *input, 2);
  if (!row || *k > *row) {
    return;
  }
  copy_if_strided(call, 0, requests);
  const int64_t rows = input->numel() / *row;
  if (selects_by_blocks(rows, *row)) {
    const int64_t items =
        std::clamp<int64_t>(div_up(input->numel(), kMultiprocessors * kBlocksPerMultiprocessor * kThreads), 4, 64);
    const int64_t blocks = rows * div_up(*row, items * kThreads);
    const size_t radix = std::max<size_t>(input->itemsize(), 4);
    const int64_t sizes[] = {
        rows * static_cast<int64_t>(input->itemsize()),
        2 * rows * 4,
        2 * rows * static_cast<int64_t>(radix),
        blocks * kDigits * 2,
        rows * kDigits * 4,
        blocks * 4,
        blocks * 4};
    c10::SmallVector<uint32_t, 8> taken;
    for (const int64_t size : sizes) {
      taken.push_back(requests.take(static_cast<size_t>(size)));
    }
    for (int i = 0; i < 2; ++i) {
      requests.give_back(requests.take(kScanByKey));
    }
    for (; !taken.empty(); taken.pop_back()) {
      requests.give_back(taken.back());
    }
  }
  if (flag_at(call, 4) && *k > kSortedInPlace) {
    const auto selected = static_cast<size_t>(rows * *k);
    requests.take(selected * kIndex);
    requests.take(selected * input->itemsize());
    sort_rows(rows * *k, *k, input->itemsize(), requests);
    requests.take(selected * kIndex);
  }
}

// A scan reads contiguous rows.
void scan(const Call& call, Requests& requests) {
  copy_if_strided(call, 0, requests);
}

// Sums and products: integers are converted first, and a single row is left to CUB, which keeps a state for each block.
void accumulate(const Call& call, Requests& requests) {
  const c10::TensorImpl* input = tensor_at(call, 0);
  if (input == nullptr || input->numel() == 0) {
    return;
  }
  size_t itemsize = input->itemsize();
  if (at::isIntegralType(c10::typeMetaToScalarType(input->dtype()), /*includeBool=*/true) && itemsize < kIndex) {
    itemsize = kIndex;
    requests.take(static_cast<size_t>(input->numel()) * itemsize);
  } else {
    copy_if_strided(call, 0, requests);
  }
  if (size_along(call, *input, 1) != input->numel()) {
    return;
  }
  constexpr int64_t kAlignment = 256;
  constexpr int64_t kSpareBlocks = 32;
  const int64_t block = itemsize == 8 ? 896 : itemsize == 4 ? 1920 : 7400;
  const int64_t states = (div_up(input->numel(), block) + kSpareBlocks) * (itemsize == 4 ? 8 : 16);
  requests.take(static_cast<size_t>(div_up(states, kAlignment) * kAlignment + 2 * kAlignment - 1));
}

// One random number per probability, of which the largest wins.
void multinomial(const Call& call, Requests& requests) {
  const c10::TensorImpl* input = tensor_at(call, 0);
  if (input != nullptr && (!flag_at(call, 2) || number_at(call, 1) == 1)) {
    requests.take(bytes_of(*input));
  }
}

struct EmbeddingGradient {
  const c10::TensorImpl* gradient;
  int64_t count;  // the number of indices
  int64_t rows;  // in the table
  size_t index;  // bytes per index
};

// Indices are sorted together with their positions, and rows with the same index are summed in parts of ten.
void embedding_gradient(const EmbeddingGradient& e, bool counts_rows, Requests& requests) {
  const auto indices = static_cast<size_t>(e.count) * e.index;
  requests.take(indices);
  requests.take(indices);
  const uint32_t range = requests.take(indices);
  radix_sort(e.count, e.index, e.index, 8 * e.index, requests);
  requests.give_back(range);
  if (counts_rows) {
    requests.take(indices);
  }
  requests.output(0);
  requests.take(indices);
  requests.take(kIndex);
  requests.give_back(requests.take(indices));
  const int64_t segments = std::min(e.count, e.rows);
  const int64_t parts = segments + e.count / 10;
  const int64_t width = e.gradient->dim() == 0 ? 1 : e.gradient->size(e.gradient->dim() - 1);
  requests.take(static_cast<size_t>(segments) * e.index);
  requests.take(static_cast<size_t>(segments) * e.index);
  requests.take(kIndex);
  requests.take(static_cast<size_t>(parts) * e.index);
  requests.take(static_cast<size_t>(parts * width) * accumulator_size(*e.gradient));
}

void embedding_backward(const Call& call, Requests& requests) {
  constexpr int64_t kFewIndices = 3072;  // up to this number, another kernel is used
  const c10::TensorImpl* gradient = tensor_at(call, 0);
  const c10::TensorImpl* indices = tensor_at(call, 1);
  const auto rows = number_at(call, 2);
  if (gradient == nullptr || indices == nullptr || indices->numel() == 0 || gradient->dim() == 0 || !rows) {
    return;
  }
  const bool copies_indices = copy_if_strided(call, 1, requests);
  const bool copies = copy_if_strided(call, 0, requests) || copies_indices;
  const bool counts_rows = flag_at(call, 4);
  if (indices->numel() > kFewIndices || counts_rows) {
    embedding_gradient({gradient, indices->numel(), *rows, indices->itemsize()}, counts_rows, requests);
  } else if (copies) {
    requests.output(0);
  }
}

void embedding_bag(const Call& call, Requests& requests) {
  for (const uint32_t output : {2U, 1U, 0U, 3U}) {
    requests.output(output);
  }
}

// For sums and means; maxima are scattered without buffers.
void embedding_bag_backward(const Call& call, Requests& requests) {
  constexpr int64_t kMaximum = 2;
  const c10::TensorImpl* gradient = tensor_at(call, 0);
  const c10::TensorImpl* indices = tensor_at(call, 1);
  const auto rows = number_at(call, 5);
  if (gradient == nullptr || indices == nullptr || indices->numel() == 0 || gradient->dim() == 0 || !rows) {
    return;
  }
  copy_if_strided(call, 0, requests);
  if (call.arg(7).isInt() && call.arg(7).toInt() != kMaximum) {
    embedding_gradient({gradient, indices->numel(), *rows, indices->itemsize()}, flag_at(call, 6), requests);
  }
}

// The bytes of a tensor after broadcasting to at least `count` elements.
size_t expanded_bytes(const c10::TensorImpl& tensor, int64_t count) {
  return static_cast<size_t>(std::max(tensor.numel(), count)) * tensor.itemsize();
}

// With accumulation, indices become linear positions, which are sorted together with their origin.
void index_put(const Call& call, Requests& requests) {
  if (!flag_at(call, 3)) {
    return;
  }
  const c10::TensorImpl* self = tensor_at(call, 0);
  const c10::TensorImpl* values = tensor_at(call, 2);
  int64_t count = 1;
  int64_t indexed = 1;  // elements in the indexed dimensions
  size_t tensors = 0;
  for (const TensorArg& tensor : call.tensors()) {
    if (tensor.arg != 1) {
      continue;
    }
    ++tensors;
    count = std::max(count, std::min(tensor.impl->numel(), kMostElements));
    if (self != nullptr && tensor.element < static_cast<uint32_t>(self->dim())) {
      indexed *= self->size(tensor.element);
    }
  }
  if (self == nullptr || values == nullptr || tensors == 0) {
    return;
  }
  const auto indices = static_cast<size_t>(count) * kIndex;
  uint32_t positions = 0;
  for (size_t i = 0; i < tensors; ++i) {
    const uint32_t wrapped = requests.take(indices);
    const uint32_t scaled = requests.take(indices);
    requests.give_back(wrapped);
    if (i > 0) {
      requests.give_back(scaled);
    } else {
      positions = scaled;
    }
  }
  const int64_t slice = indexed > 0 ? self->numel() / indexed : 0;
  const int64_t wanted = slice <= kMostElements / count ? count * slice : 0;
  if (!values->is_contiguous() || values->numel() < wanted) {
    requests.take(expanded_bytes(*values, wanted));
  }
  requests.take(indices);
  requests.take(indices);
  requests.take(indices);
  radix_sort(count, kIndex, kIndex, bits_of(indexed), requests);
  requests.give_back(positions);
}

// One dimension after the other, each into a tensor of its own, of which the last is the output.
void roll(const Call& call, Requests& requests) {
  const c10::TensorImpl* input = tensor_at(call, 0);
  if (input == nullptr || input->numel() == 0 || !call.arg(2).isIntList()) {
    return;
  }
  const auto dims = static_cast<int64_t>(call.arg(2).toIntVector().size());
  if (dims > input->dim() || (dims < 2 && input->is_contiguous())) {
    return;
  }
  std::optional<uint32_t> copy;
  if (!input->is_contiguous()) {
    copy = requests.take(bytes_of(*input));
  }
  for (int64_t rolled = 1; rolled < dims; ++rolled) {
    requests.take(bytes_of(*input));
    if (rolled == 1 && copy) {
      requests.give_back(*copy);
    }
  }
  requests.output(0);
}

constexpr Row kRows[] = {
    {"aten::roll", {roll}},
    {"aten::sort", {sort<1>}},
    {"aten::sort.stable", {sort<2>}},
    {"aten::topk", {topk}},
    {"aten::cumsum", {accumulate}},
    {"aten::cumprod", {accumulate}},
    {"aten::cummax", {scan}},
    {"aten::cummin", {scan}},
    {"aten::logcumsumexp", {scan}},
    {"aten::multinomial", {multinomial}},
    {"aten::embedding_dense_backward", {embedding_backward}},
    {"aten::_embedding_bag", {embedding_bag}},
    {"aten::_embedding_bag_forward_only", {embedding_bag}},
    {"aten::_embedding_bag_dense_backward", {embedding_bag_backward}},
    {"aten::index_put", {index_put}},
    {"aten::index_put_", {index_put}},
    {"aten::_index_put_impl_", {index_put}},
};

}  // namespace

c10::ArrayRef<Row> indexing_rows() {
  return kRows;
}

}  // namespace torchfake::side_memory
