// What CUDA kernels take on the side: temporaries by operator family, and which operators use a library's workspace.
//
// The formulas follow the kernels' sources; they are held to recordings of an H200 with PyTorch 2.11, CUDA 13.0 and cuDNN
// 9.19 (tests/memory). Where a library decides by itself (cuDNN), they are the layout copies that it makes for most shapes.
#include <torchfake/core/call.h>
#include <torchfake/memory/allocator_config.h>
#include <torchfake/memory/operator_memory.h>

#include <algorithm>
#include <bit>
#include <optional>

namespace torchfake {

namespace {

using Sizes = c10::SmallVectorImpl<size_t>;

// The functions here run before the operator has checked its arguments: what makes no sense takes nothing, and no number
// may overflow.
constexpr int64_t kMostElements = int64_t{1} << 40;
constexpr int64_t kMostInList = int64_t{1} << 16;

// The tensor at an argument, or null: None, a list, no tensor at all, or one that no card could hold.
const c10::TensorImpl* tensor_at(const Call& call, size_t arg) {
  for (const TensorArg& tensor : call.tensors()) {
    if (tensor.arg == arg) {
      return tensor.impl->numel() <= kMostElements ? tensor.impl : nullptr;
    }
  }
  return nullptr;
}

// A list of `count` small numbers from `least` on; one number stands for all. Nothing where the argument is none.
std::optional<std::vector<int64_t>> numbers_at(const Call& call, size_t arg, int64_t count, int64_t least) {
  if (!call.arg(arg).isIntList()) {
    return std::nullopt;
  }
  std::vector<int64_t> numbers = call.arg(arg).toIntVector();
  if (numbers.size() == 1) {
    numbers.resize(static_cast<size_t>(count), numbers[0]);
  }
  const bool fits = static_cast<int64_t>(numbers.size()) == count &&
      std::all_of(numbers.begin(), numbers.end(), [&](int64_t n) { return n >= least && n <= kMostInList; });
  return fits ? std::optional(std::move(numbers)) : std::nullopt;
}

// A number from 1 on, or nothing.
std::optional<int64_t> number_at(const Call& call, size_t arg) {
  const c10::IValue& value = call.arg(arg);
  const bool fits = value.isInt() && value.toInt() >= 1 && value.toInt() <= kMostElements;
  return fits ? std::optional(value.toInt()) : std::nullopt;
}

size_t bytes_of(const c10::TensorImpl& tensor) {
  return static_cast<size_t>(tensor.numel()) * tensor.itemsize();
}

// What a kernel accumulates in.
size_t accumulator_size(const c10::TensorImpl& tensor) {
  return std::max<size_t>(tensor.itemsize(), at::isFloatingType(c10::typeMetaToScalarType(tensor.dtype())) ? 4 : 8);
}

// ---- Reductions: the buffer in which the blocks of one output meet

// Of an H200. Other cards have other counts, which change the buffer's size where there are few outputs.
constexpr int64_t kMultiprocessors = 132;
constexpr int64_t kThreadsPerMultiprocessor = 2048;

int64_t div_up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// A reduction as the kernel sees it: neighbouring dimensions that lie together are one.
struct Reduction {
  int64_t outputs = 1;
  int64_t inputs = 1;  // for each output
  bool is_inner = true;  // the fastest dimension is reduced
  bool is_dense = false;  // along the fastest one, elements lie side by side
  int64_t reduced_dims = 0;
  int64_t vector = 1;  // outputs that a thread takes at once
};

// The largest of 4, 2, 1 that divides all that it has to.
int64_t vector_size(int64_t inner, const std::vector<int64_t>& strides) {
  int64_t size = 4;
  const auto fit = [&](int64_t n) {
    while (n % size != 0) {
      size /= 2;
    }
  };
  fit(inner);
  for (const int64_t stride : strides) {
    fit(stride);
  }
  return size;
}

Reduction reduction_of(const c10::TensorImpl& input, c10::ArrayRef<bool> is_reduced) {
  struct Dim {
    int64_t size;
    int64_t stride;
    bool reduced;
  };
  std::vector<Dim> dims;
  for (int64_t i = 0; i < input.dim(); ++i) {
    if (input.size(i) != 1) {
      dims.push_back({input.size(i), input.stride(i), is_reduced[static_cast<size_t>(i)]});
    }
  }
  std::stable_sort(dims.begin(), dims.end(), [](const Dim& a, const Dim& b) { return a.stride < b.stride; });
  std::vector<Dim> merged;
  for (const Dim& dim : dims) {
    if (!merged.empty() && merged.back().reduced == dim.reduced &&
        merged.back().stride * merged.back().size == dim.stride) {
      merged.back().size *= dim.size;
    } else {
      merged.push_back(dim);
    }
  }
  Reduction found;
  std::vector<int64_t> other_strides;
  const Dim* inner_kept = nullptr;
  for (const Dim& dim : merged) {
    (dim.reduced ? found.inputs : found.outputs) *= dim.size;
    found.reduced_dims += dim.reduced ? 1 : 0;
    if (!dim.reduced && inner_kept == nullptr) {
      inner_kept = &dim;
    }
  }
  found.is_inner = merged.empty() || merged.front().reduced;
  found.is_dense = merged.empty() || merged.front().stride == 1;
  if (!found.is_inner && found.is_dense && inner_kept != nullptr) {
    for (const Dim& dim : merged) {
      if (&dim != inner_kept) {
        other_strides.push_back(dim.stride);
      }
    }
    found.vector = vector_size(inner_kept->size, other_strides);
  }
  return found;
}

// The launch that ATen's reduction kernel chooses, as far as its buffers depend on it.
void reduction_buffers(const Reduction& reduction, size_t accumulator, Sizes& sizes) {
  constexpr int64_t kWarp = 32;
  constexpr int64_t kMaxThreads = 512;
  constexpr int64_t kMinValues = 16;  // per thread
  constexpr int64_t kMaxValues = 256;
  int64_t dim0 = reduction.is_inner ? reduction.inputs : reduction.outputs;
  const int64_t dim1 = reduction.is_inner ? reduction.outputs : reduction.inputs;
  if (reduction.is_dense && reduction.is_inner && dim0 >= 128 && reduction.reduced_dims == 1) {
    dim0 /= 4;
  }
  dim0 /= reduction.vector;
  const int64_t max_threads = kMaxThreads / reduction.vector;
  const auto power = [&](int64_t dim) {
    return dim < max_threads ? static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(std::max<int64_t>(dim, 1))))
                             : max_threads;
  };
  int64_t width = std::min(power(dim0), kWarp);
  const int64_t height = std::min(power(dim1), max_threads / width);
  width = std::min(power(dim0), max_threads / height);
  int64_t step_input = reduction.is_inner ? width : 1;
  int64_t step_output = reduction.is_inner ? 1 : width;
  const auto values = [&] { return div_up(reduction.inputs, step_input); };
  const bool splits_warps = values() >= std::min(height * 16, kMaxValues);
  (splits_warps ? step_input : step_output) *= height;
  const int64_t target = kMultiprocessors * (kThreadsPerMultiprocessor / (width * height));
  const int64_t grid = div_up(reduction.outputs / reduction.vector, step_output);
  if (!splits_warps || values() < kMaxValues || grid > target) {
    return;
  }
  const int64_t blocks =
      std::max(std::min(div_up(target, grid), div_up(values(), kMinValues)), div_up(values(), kMaxValues));
  if (blocks <= 1) {
    return;
  }
  int64_t elements = reduction.outputs * blocks;
  if (!reduction.is_inner) {
    elements *= width * reduction.vector;
  }
  sizes.push_back(accumulator * static_cast<size_t>(elements));
  sizes.push_back(sizeof(int) * static_cast<size_t>(grid));
}

void reduce(const c10::TensorImpl& input, c10::OptionalArrayRef<int64_t> dims, Sizes& sizes) {
  if (input.numel() == 0) {
    return;
  }
  const bool all = !dims.has_value() || dims->empty();
  c10::SmallVector<bool, 8> is_reduced(static_cast<size_t>(input.dim()), all);
  for (const int64_t dim : dims.value_or(c10::IntArrayRef{})) {
    const int64_t at = dim < 0 ? dim + input.dim() : dim;
    if (at < 0 || at >= input.dim()) {
      return;
    }
    is_reduced[static_cast<size_t>(at)] = true;
  }
  reduction_buffers(reduction_of(input, is_reduced), accumulator_size(input), sizes);
}

// Integers are converted to the accumulator's type first.
void sum_of(const c10::TensorImpl& input, c10::OptionalArrayRef<int64_t> dims, Sizes& sizes) {
  if (!at::isFloatingType(c10::typeMetaToScalarType(input.dtype())) && input.itemsize() < 8) {
    sizes.push_back(static_cast<size_t>(input.numel()) * 8);
  }
  reduce(input, dims, sizes);
}

void full_reduction(const Call& call, Sizes& sizes) {
  if (const c10::TensorImpl* input = tensor_at(call, 0)) {
    sum_of(*input, std::nullopt, sizes);
  }
}

void reduction_over_dims(const Call& call, Sizes& sizes) {
  const c10::TensorImpl* input = tensor_at(call, 0);
  if (input == nullptr) {
    return;
  }
  if (call.arg(1).isIntList()) {
    const std::vector<int64_t> dims = call.arg(1).toIntVector();
    sum_of(*input, c10::IntArrayRef(dims), sizes);
  } else {
    sum_of(*input, std::nullopt, sizes);
  }
}

// ---- Elementwise steps of what looks like one operator

// The gradient times the output, before it is summed.
void softmax_backward(const Call& call, Sizes& sizes) {
  if (const c10::TensorImpl* gradient = tensor_at(call, 0)) {
    sizes.push_back(bytes_of(*gradient));
  }
}

// The loss of each element, before it is reduced.
void loss_of_each(const Call& call, Sizes& sizes) {
  if (const c10::TensorImpl* input = tensor_at(call, 0)) {
    sizes.push_back(bytes_of(*input));
    reduce(*input, std::nullopt, sizes);
  }
}

void two_losses_of_each(const Call& call, Sizes& sizes) {
  if (const c10::TensorImpl* input = tensor_at(call, 0)) {
    sizes.push_back(bytes_of(*input));
    loss_of_each(call, sizes);
  }
}

void copy_if_strided(const Call& call, size_t arg, Sizes& sizes) {
  const c10::TensorImpl* tensor = tensor_at(call, arg);
  if (tensor != nullptr && !tensor->is_contiguous()) {
    sizes.push_back(bytes_of(*tensor));
  }
}

void contiguous_first(const Call& call, Sizes& sizes) {
  copy_if_strided(call, 0, sizes);
}

void contiguous_first_two(const Call& call, Sizes& sizes) {
  copy_if_strided(call, 0, sizes);
  copy_if_strided(call, 1, sizes);
}

// ---- Attention

// The sum over a row of gradient times output, twice, and the accumulated gradient of the queries by blocks of 64.
void efficient_attention_backward(const Call& call, Sizes& sizes) {
  const c10::TensorImpl* query = tensor_at(call, 1);
  if (query == nullptr || query->dim() != 4) {
    return;
  }
  const int64_t heads = query->size(0) * query->size(1);
  const size_t row_sums = static_cast<size_t>(heads * query->size(2)) * sizeof(float);
  sizes.append({row_sums, row_sums});
  sizes.push_back(static_cast<size_t>(heads * div_up(query->size(2), 64) * (64 * query->size(3) * 4 + 16)));
}

// The gradient of the queries in float32, row sums, and a descriptor.
void cudnn_attention_backward(const Call& call, Sizes& sizes) {
  const c10::TensorImpl* query = tensor_at(call, 1);
  if (query == nullptr || query->dim() != 4) {
    return;
  }
  const int64_t rows = query->size(0) * query->size(1) * query->size(2);
  sizes.push_back(static_cast<size_t>(rows * query->size(3) + rows) * sizeof(float) + 256);
}

void flash_attention_backward(const Call& call, Sizes& sizes) {
  const c10::TensorImpl* query = tensor_at(call, 1);
  if (query == nullptr || query->dim() != 4) {
    return;
  }
  const int64_t heads = query->size(0) * query->size(1);
  const int64_t rows = div_up(query->size(2), 128) * 128;
  sizes.push_back(static_cast<size_t>(heads * rows) * sizeof(float));
  sizes.push_back(static_cast<size_t>(heads * rows * query->size(3)) * sizeof(float));
}

// ---- Convolution: cuDNN's kernels want channels last, and copy what is not

// Of 1,600 recorded calls, in the median: what a kind of call takes, as a part of input, weight and output together.
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
    return 0;  // a product of matrices
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
  size_t stride, groups;  // where these arguments stand
  bool is_backward;
};

void convolution_workspace(const Call& call, const ConvolutionArguments& a, Sizes& sizes) {
  const auto strides = numbers_at(call, a.stride, a.input->dim() - 2, 1);
  const auto groups = number_at(call, a.groups);
  if (!strides || !groups || (*groups > 1 && a.weight->size(1) == 1)) {
    return;  // the last: depthwise, by kernels of ATen's own
  }
  const auto kernel = a.weight->sizes().slice(2);
  ConvolutionKind kind;
  kind.is_backward = a.is_backward;
  kind.is_channels_last = is_channels_last(*a.input);
  kind.is_pointwise = std::all_of(kernel.begin(), kernel.end(), [](int64_t size) { return size == 1; });
  kind.is_strided = std::any_of(strides->begin(), strides->end(), [](int64_t stride) { return stride != 1; });
  kind.is_grouped = *groups > 1;
  kind.is_float = a.input->itemsize() >= 4;
  const auto bytes = static_cast<double>(bytes_of(*a.input) + bytes_of(*a.weight) + a.output_bytes);
  if (const auto taken = static_cast<size_t>(layout_copies(kind) * bytes)) {
    sizes.push_back(taken);
  }
}

// Of a convolution's output; 0 where there is none.
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

void convolution(const Call& call, Sizes& sizes) {
  const c10::TensorImpl* input = tensor_at(call, 0);
  const c10::TensorImpl* weight = tensor_at(call, 1);
  if (input == nullptr || weight == nullptr || input->dim() != weight->dim() || input->dim() < 3) {
    return;
  }
  const auto output = static_cast<size_t>(output_numel(call, *input, *weight)) * input->itemsize();
  convolution_workspace(call, {input, weight, output, /*stride=*/3, /*groups=*/8, /*is_backward=*/false}, sizes);
}

void convolution_backward(const Call& call, Sizes& sizes) {
  const c10::TensorImpl* gradient = tensor_at(call, 0);
  const c10::TensorImpl* input = tensor_at(call, 1);
  const c10::TensorImpl* weight = tensor_at(call, 2);
  if (gradient == nullptr || input == nullptr || weight == nullptr || input->dim() != weight->dim() ||
      input->dim() < 3) {
    return;
  }
  convolution_workspace(
      call, {input, weight, bytes_of(*gradient), /*stride=*/4, /*groups=*/9, /*is_backward=*/true}, sizes);
}

// ---- Recurrent networks

// cuDNN's workspace: 8 MiB for each layer and direction, and a sum that was fitted to recordings of 44 networks with gates
// (7 % off in the median) and 22 without (3 %).
struct RecurrentArguments {
  size_t mode, hidden, layers, batch_first, bidirectional;
};

void recurrent_workspace(const Call& call, const RecurrentArguments& at, Sizes& sizes) {
  const c10::TensorImpl* input = tensor_at(call, 0);
  const auto layers_of = number_at(call, at.layers);
  const auto hidden_of = number_at(call, at.hidden);
  const bool has_flags = call.arg(at.bidirectional).isBool() && call.arg(at.batch_first).isBool();
  if (input == nullptr || input->dim() != 3 || !layers_of || !hidden_of || !has_flags || !call.arg(at.mode).isInt()) {
    return;  // packed sequences among them
  }
  const bool has_gates = call.arg(at.mode).toInt() >= 2;
  const auto layers = static_cast<double>(*layers_of);
  const double directions = call.arg(at.bidirectional).toBool() ? 2 : 1;
  const auto hidden = static_cast<double>(*hidden_of);
  const bool batch_first = call.arg(at.batch_first).toBool();
  const double batch = static_cast<double>(input->size(batch_first ? 0 : 1));
  const double steps = static_cast<double>(input->size(0) * input->size(1));
  double weights = 0;
  for (const TensorArg& tensor : call.tensors()) {
    weights += tensor.arg == 1 ? static_cast<double>(tensor.impl->numel()) : 0;
  }
  const double outputs = steps * hidden * directions;
  const double inputs = steps * static_cast<double>(input->size(2));
  const double states = batch * hidden * directions * layers;
  const double elements = has_gates
      ? 0.5 * weights + 6.5 * outputs - 1.5 * outputs * layers + 6.2 * inputs + 44 * states
      : 9.2 * outputs + 3.2 * outputs * layers;
  const double fixed = 8.0 * static_cast<double>(memory::kMiB) * layers * directions;
  if (batch_first) {
    sizes.push_back(bytes_of(*input));
  }
  const double bytes = fixed + std::max(elements, 0.0) * static_cast<double>(input->itemsize());
  if (bytes <= static_cast<double>(kMostElements)) {
    sizes.push_back(static_cast<size_t>(bytes));
  }
}

void recurrent(const Call& call, Sizes& sizes) {
  recurrent_workspace(call, {.mode = 6, .hidden = 7, .layers = 9, .batch_first = 10, .bidirectional = 13}, sizes);
}

void recurrent_backward(const Call& call, Sizes& sizes) {
  copy_if_strided(call, 7, sizes);  // the gradient of the output
  recurrent_workspace(call, {.mode = 10, .hidden = 11, .layers = 13, .batch_first = 14, .bidirectional = 17}, sizes);
}

// ---- Sorting and scattering: CUB's buffers

// Of rows above 4096 elements: the indices once more, and keys with indices twice.
void sort(const Call& call, Sizes& sizes) {
  const c10::TensorImpl* input = tensor_at(call, 0);
  if (input == nullptr || input->numel() == 0) {
    return;
  }
  const auto count = static_cast<size_t>(input->numel());
  sizes.push_back(count * 8);
  if (count > 4096) {
    sizes.push_back(count * (input->itemsize() + 8) + 255);
  }
}

// Indices sorted with where they were, and the sums of those that fall together.
void embedding_backward(const Call& call, Sizes& sizes) {
  const c10::TensorImpl* gradient = tensor_at(call, 0);
  const c10::TensorImpl* indices = tensor_at(call, 1);
  if (gradient == nullptr || indices == nullptr || indices->numel() == 0 || gradient->dim() == 0) {
    return;
  }
  copy_if_strided(call, 0, sizes);
  const int64_t count = indices->numel();
  if (count <= 3072) {
    return;  // by another kernel
  }
  const auto rows = number_at(call, 2);
  if (!rows) {
    return;
  }
  const int64_t segments = std::min(count, *rows);
  const int64_t parts = segments + count / 10;
  // The gradient has a row for each index.
  const int64_t width = gradient->numel() / count;
  for (int i = 0; i < 4; ++i) {
    sizes.push_back(static_cast<size_t>(count) * 8);
  }
  sizes.push_back(static_cast<size_t>(segments) * 8);
  sizes.push_back(static_cast<size_t>(segments) * 8);
  sizes.push_back(static_cast<size_t>(parts) * 8);
  sizes.push_back(static_cast<size_t>(parts * width) * accumulator_size(*gradient));
}

// Indices, linear ones, both once more, and what sorts them.
void index_put(const Call& call, Sizes& sizes) {
  if (call.num_args() < 4 || !call.arg(3).isBool() || !call.arg(3).toBool()) {
    return;
  }
  const c10::TensorImpl* values = tensor_at(call, 2);
  int64_t count = 1;
  for (const TensorArg& tensor : call.tensors()) {
    if (tensor.arg == 1) {
      count = std::max(count, std::min(tensor.impl->numel(), kMostElements));
    }
  }
  for (int i = 0; i < 5; ++i) {
    sizes.push_back(static_cast<size_t>(count) * 8);
  }
  sizes.push_back(static_cast<size_t>(count) * 16 + 7000);
  if (values != nullptr && !values->is_contiguous()) {
    sizes.push_back(bytes_of(*values));
  }
}

struct Row {
  const char* name;
  memory::OperatorMemory memory;
};

constexpr Row kRows[] = {
    {"aten::sum", {full_reduction}},
    {"aten::sum.dim_IntList", {reduction_over_dims}},
    {"aten::mean", {full_reduction}},
    {"aten::mean.dim", {reduction_over_dims}},
    {"aten::_softmax_backward_data", {softmax_backward}},
    {"aten::mse_loss", {loss_of_each}},
    {"aten::smooth_l1_loss", {loss_of_each}},
    {"aten::binary_cross_entropy_with_logits", {two_losses_of_each}},
    {"aten::native_layer_norm", {contiguous_first}},
    {"aten::native_layer_norm_backward", {contiguous_first_two}},
    {"aten::_scaled_dot_product_efficient_attention_backward", {efficient_attention_backward}},
    {"aten::_scaled_dot_product_cudnn_attention_backward", {cudnn_attention_backward}},
    {"aten::_scaled_dot_product_flash_attention_backward", {flash_attention_backward}},
    {"aten::convolution", {convolution}},
    {"aten::convolution_backward", {convolution_backward}},
    {"aten::_cudnn_rnn", {recurrent}},
    {"aten::_cudnn_rnn_backward", {recurrent_backward}},
    {"aten::sort", {sort}},
    {"aten::sort.stable", {sort}},
    {"aten::embedding_dense_backward", {embedding_backward}},
    {"aten::index_put", {index_put}},
    {"aten::index_put_", {index_put}},
    {"aten::mm", {nullptr, memory::Workspace::kBlas}},
    {"aten::bmm", {nullptr, memory::Workspace::kBlas}},
    {"aten::baddbmm", {nullptr, memory::Workspace::kBlas}},
    {"aten::mv", {nullptr, memory::Workspace::kBlas}},
    {"aten::dot", {nullptr, memory::Workspace::kBlas}},
    {"aten::addmm", {nullptr, memory::Workspace::kBlasLt}},
    {"aten::linear", {nullptr, memory::Workspace::kBlasLt}},
};

struct Registration {
  Registration() {
    for (const Row& row : kRows) {
      memory::register_operator_memory(row.name, row.memory);
    }
  }
};
const Registration registration;

}  // namespace

}  // namespace torchfake
