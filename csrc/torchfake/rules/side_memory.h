// Temporary memory of CUDA kernels: reading a call's arguments, and the families of operators. Step: outcome.
//
// The formulas follow the kernels' sources and are checked against recordings of an H200 with PyTorch 2.11, CUDA 13.0
// and cuDNN 9.19 (tests/memory). If a library makes its own choices (cuDNN), they model the layout copies that it makes
// for most shapes.
#pragma once

#include <torchfake/core/call.h>
#include <torchfake/memory/operator_memory.h>

#include <optional>
#include <vector>

namespace torchfake::side_memory {

using memory::Requests;

// These functions run before the operator has checked its arguments: invalid arguments take no memory, and no
// arithmetic may overflow.
constexpr int64_t kMostElements = int64_t{1} << 40;
constexpr int64_t kMostInList = int64_t{1} << 16;

// For an H200. Other cards have other counts, which change the buffers of reductions with few outputs.
constexpr int64_t kMultiprocessors = 132;
constexpr int64_t kThreadsPerMultiprocessor = 2048;

// The tensor at an argument. Null for None, a list, anything else that is not a tensor, or a tensor too large for any
// card.
const c10::TensorImpl* tensor_at(const Call& call, size_t arg);

// A list of `count` small numbers of at least `least`; a single number is repeated. Nothing if the argument is not such
// a list.
std::optional<std::vector<int64_t>> numbers_at(const Call& call, size_t arg, int64_t count, int64_t least);

// A number of at least 1, or nothing.
std::optional<int64_t> number_at(const Call& call, size_t arg);

// Whether an argument is a bool with the value true.
bool flag_at(const Call& call, size_t arg);

// An element of a list of bools; false if it does not exist.
bool mask_at(const Call& call, size_t arg, size_t element);

// The bytes of the tensor's elements, as if it were dense.
size_t bytes_of(const c10::TensorImpl& tensor);

// The size of the type in which a kernel accumulates.
size_t accumulator_size(const c10::TensorImpl& tensor);

// a / b, rounded up.
int64_t div_up(int64_t a, int64_t b);

// Copies the tensor at an argument if it is not contiguous. Returns whether it does.
bool copy_if_strided(const Call& call, size_t arg, Requests& requests);

// The buffers of a reduction over `dims` (all if empty) through which the blocks of one output are combined.
// `accumulator` is the size of a partial result in bytes.
void reduce(const c10::TensorImpl& input, c10::OptionalArrayRef<int64_t> dims, size_t accumulator, Requests& requests);

// CUB's sort of `count` pairs by the lowest `bits` of their keys, eight in a pass: a second copy of keys and values for
// more than one pass, and the blocks' counts. `key` and `value` are sizes in bytes.
void radix_sort(int64_t count, size_t key, size_t value, size_t bits, Requests& requests);

// The temporary memory of an operator. Each family has a table of rows.
struct Row {
  const char* name;
  memory::OperatorMemory memory;
};

c10::ArrayRef<Row> attention_rows();
c10::ArrayRef<Row> convolution_rows();
c10::ArrayRef<Row> indexing_rows();
c10::ArrayRef<Row> normalization_rows();
c10::ArrayRef<Row> product_rows();
c10::ArrayRef<Row> recurrent_rows();
c10::ArrayRef<Row> reduction_rows();

}  // namespace torchfake::side_memory
