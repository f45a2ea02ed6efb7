// What CUDA kernels take on the side: reading a call's arguments, and the families of operators. Step: outcome.
//
// The formulas follow the kernels' sources; they are held to recordings of an H200 with PyTorch 2.11, CUDA 13.0 and cuDNN
// 9.19 (tests/memory). Where a library decides by itself (cuDNN), they are the layout copies that it makes for most shapes.
#pragma once

#include <torchfake/core/call.h>
#include <torchfake/memory/operator_memory.h>

#include <optional>
#include <vector>

namespace torchfake::side_memory {

using memory::Requests;

// The functions here run before the operator has checked its arguments: what makes no sense takes nothing, and no number
// may overflow.
constexpr int64_t kMostElements = int64_t{1} << 40;
constexpr int64_t kMostInList = int64_t{1} << 16;

// Of an H200. Other cards have other counts, which change the buffers of reductions with few outputs.
constexpr int64_t kMultiprocessors = 132;
constexpr int64_t kThreadsPerMultiprocessor = 2048;

// The tensor at an argument, or null: None, a list, no tensor at all, or one that no card could hold.
const c10::TensorImpl* tensor_at(const Call& call, size_t arg);

// A list of `count` small numbers from `least` on; one number stands for all. Nothing where the argument is none.
std::optional<std::vector<int64_t>> numbers_at(const Call& call, size_t arg, int64_t count, int64_t least);

// A number from 1 on, or nothing.
std::optional<int64_t> number_at(const Call& call, size_t arg);

// Whether an argument is a bool that is true.
bool flag_at(const Call& call, size_t arg);

// An element of a list of bools; false where there is none.
bool mask_at(const Call& call, size_t arg, size_t element);

size_t bytes_of(const c10::TensorImpl& tensor);

// What a kernel accumulates in.
size_t accumulator_size(const c10::TensorImpl& tensor);

int64_t div_up(int64_t a, int64_t b);

// A copy of the tensor at an argument where it is not contiguous. Returns whether there is one.
bool copy_if_strided(const Call& call, size_t arg, Requests& requests);

// The buffers of a reduction over `dims`, or over all without any, in which the blocks of one output meet. `accumulator`
// are the bytes of a partial result.
void reduce(const c10::TensorImpl& input, c10::OptionalArrayRef<int64_t> dims, size_t accumulator, Requests& requests);

// CUB's sort of `count` pairs in buffers of its own: keys and values once more, and the blocks' counts.
void radix_sort(int64_t count, size_t key, size_t value, Requests& requests);

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
