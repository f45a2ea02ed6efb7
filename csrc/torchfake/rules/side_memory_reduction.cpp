// Temporary memory of reductions, losses and powers.
#include <torchfake/rules/side_memory.h>

#include <algorithm>
#include <bit>

namespace torchfake::side_memory {

namespace {

// A reduction as the kernel sees it, with adjacent dimensions merged where possible.
struct Reduction {
  int64_t outputs = 1;
  int64_t inputs = 1;  // per output
  bool is_inner = true;  // the fastest dimension is reduced
  bool is_dense = false;  // elements are adjacent along the fastest dimension
  int64_t reduced_dims = 0;
  int64_t vector = 1;  // outputs computed by a thread at once
};

// The largest of 4, 2, 1 that divides all of them.
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

// The launch configuration that ATen's reduction kernel chooses, as far as it determines the buffers.
void reduction_buffers(const Reduction& reduction, size_t accumulator, Requests& requests) {
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
  requests.take(accumulator * static_cast<size_t>(elements));
  requests.take(sizeof(int) * static_cast<size_t>(grid));
}

}  // namespace

void reduce(const c10::TensorImpl& input, c10::OptionalArrayRef<int64_t> dims, size_t accumulator, Requests& requests) {
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
  reduction_buffers(reduction_of(input, is_reduced), accumulator, requests);
}

namespace {

// Integers are converted to the accumulator's type first.
void sum_of(const c10::TensorImpl& input, c10::OptionalArrayRef<int64_t> dims, Requests& requests) {
  if (!at::isFloatingType(c10::typeMetaToScalarType(input.dtype())) && input.itemsize() < 8) {
    requests.take(static_cast<size_t>(input.numel()) * 8);
  }
  reduce(input, dims, accumulator_size(input), requests);
}

// The dimensions at an argument, which may be a number or a list; empty without one.
std::vector<int64_t> dims_at(const Call& call, size_t arg) {
  if (arg < call.num_args() && call.arg(arg).isIntList()) {
    return call.arg(arg).toIntVector();
  }
  if (arg < call.num_args() && call.arg(arg).isInt()) {
    return {call.arg(arg).toInt()};
  }
  return {};
}

void sum_over_all(const Call& call, Requests& requests) {
  if (const c10::TensorImpl* input = tensor_at(call, 0)) {
    sum_of(*input, std::nullopt, requests);
  }
}

void sum_over_dims(const Call& call, Requests& requests) {
  if (const c10::TensorImpl* input = tensor_at(call, 0)) {
    sum_of(*input, dims_at(call, 1), requests);
  }
}

// A reduction over the dimensions at argument kArg with partial results of kBytes; 0 for the input's own type, without
// widening.
template <size_t kArg, size_t kBytes>
void reduction(const Call& call, Requests& requests) {
  if (const c10::TensorImpl* input = tensor_at(call, 0)) {
    reduce(*input, dims_at(call, kArg), kBytes == 0 ? input->itemsize() : kBytes, requests);
  }
}

void vector_norm(const Call& call, Requests& requests) {
  if (const c10::TensorImpl* input = tensor_at(call, 0)) {
    reduce(*input, dims_at(call, 2), accumulator_size(*input), requests);
  }
}

// Whether the loss is reduced, as opposed to kept for each element.
bool is_reduced(const Call& call, size_t arg) {
  return number_at(call, arg).has_value();
}

// The loss of each element, before the reduction.
void loss_of_each(const Call& call, Requests& requests) {
  const c10::TensorImpl* input = tensor_at(call, 0);
  if (input != nullptr && is_reduced(call, 2)) {
    requests.take(bytes_of(*input));
    reduce(*input, std::nullopt, accumulator_size(*input), requests);
  }
}

void huber_loss(const Call& call, Requests& requests) {
  const c10::TensorImpl* input = tensor_at(call, 0);
  if (input != nullptr && is_reduced(call, 2)) {
    requests.take(bytes_of(*input));
    requests.output(0);
    reduce(*input, std::nullopt, accumulator_size(*input), requests);
  }
}

// The log-sigmoid, then the loss of each element.
void binary_cross_entropy_with_logits(const Call& call, Requests& requests) {
  const c10::TensorImpl* input = tensor_at(call, 0);
  if (input == nullptr) {
    return;
  }
  requests.take(bytes_of(*input));
  if (is_reduced(call, 4)) {
    requests.take(bytes_of(*input));
    requests.output(0);
    reduce(*input, std::nullopt, accumulator_size(*input), requests);
  } else {
    requests.output(0);
  }
}

// The norms of chunks of all tensors, before they are combined.
void foreach_norm(const Call& call, Requests& requests) {
  constexpr int64_t kChunk = 65536;
  size_t count = 0;
  int64_t chunks = 0;
  size_t accumulator = 4;
  for (const TensorArg& tensor : call.tensors()) {
    ++count;
    chunks = std::max(chunks, div_up(std::min(tensor.impl->numel(), kMostElements), kChunk));
    accumulator = std::max(accumulator, tensor.impl->itemsize());
  }
  requests.take(count * static_cast<size_t>(chunks) * accumulator);
  requests.outputs(static_cast<uint32_t>(count));
}

// The bytes of a mean with its deviation and counts, and of a value with its index.
constexpr size_t kMoments = 16;
constexpr size_t kValueAndIndex = 16;

// A number that is raised to the elements of a tensor becomes a tensor on the card, unless it is 1.
void powers_of_number(const Call& call, Requests& requests) {
  const c10::IValue& base = call.arg(0);
  if (base.isComplexDouble()) {
    requests.take(sizeof(c10::complex<double>));
  } else if (base.isDouble() ? base.toDouble() != 1 : base.isInt() && base.toInt() != 1) {
    requests.take(sizeof(double));
  }
}

constexpr Row kRows[] = {
    {"aten::pow.Scalar", {powers_of_number}},
    {"aten::sum", {sum_over_all}},
    {"aten::sum.dim_IntList", {sum_over_dims}},
    {"aten::mean", {sum_over_all}},
    {"aten::mean.dim", {sum_over_dims}},
    {"aten::prod", {sum_over_all}},
    {"aten::prod.dim_int", {sum_over_dims}},
    {"aten::amax", {reduction<1, 0>}},
    {"aten::amin", {reduction<1, 0>}},
    {"aten::max", {reduction<1, 0>}},
    {"aten::min", {reduction<1, 0>}},
    {"aten::max.dim", {reduction<1, kValueAndIndex>}},
    {"aten::min.dim", {reduction<1, kValueAndIndex>}},
    {"aten::argmax", {reduction<1, kValueAndIndex>}},
    {"aten::argmin", {reduction<1, kValueAndIndex>}},
    {"aten::var.correction", {reduction<1, kMoments>}},
    {"aten::std.correction", {reduction<1, kMoments>}},
    {"aten::var_mean.correction", {reduction<1, kMoments>}},
    {"aten::std_mean.correction", {reduction<1, kMoments>}},
    {"aten::linalg_vector_norm", {vector_norm}},
    {"aten::mse_loss", {loss_of_each}},
    {"aten::smooth_l1_loss", {loss_of_each}},
    {"aten::huber_loss", {huber_loss}},
    {"aten::binary_cross_entropy_with_logits", {binary_cross_entropy_with_logits}},
    {"aten::_foreach_norm.Scalar", {foreach_norm}},
};

}  // namespace

c10::ArrayRef<Row> reduction_rows() {
  return kRows;
}

}  // namespace torchfake::side_memory
