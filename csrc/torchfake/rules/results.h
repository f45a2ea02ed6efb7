// The tensors that kernels return: fresh, on meta, with the strides that a real kernel gives them.
#pragma once

#include <ATen/core/Tensor.h>

namespace torchfake {

using OptTensor = std::optional<at::Tensor>;

at::Tensor empty(c10::IntArrayRef sizes, c10::ScalarType dtype);

// Like a tensor in sizes and dtype: row by row; or with its strides, made dense as empty_like does; or in channels-last
// order where the tensor is in it.
at::Tensor contiguous_like(const at::Tensor& tensor);
at::Tensor contiguous_like(const at::Tensor& tensor, c10::ScalarType dtype);
at::Tensor strided_like(const at::Tensor& tensor);
at::Tensor strided_like(const at::Tensor& tensor, c10::ScalarType dtype);
at::Tensor formatted_like(const at::Tensor& tensor);
at::Tensor formatted(c10::IntArrayRef sizes, const at::Tensor& like);

// Matrices column by column, as LAPACK has them.
at::Tensor column_major(c10::IntArrayRef sizes, c10::ScalarType dtype);

// What a pointwise kernel returns: broadcast, of the dtype that the inputs promote to, laid out by TensorIterator.
at::Tensor pointwise(const at::Tensor& self);
at::Tensor pointwise(const at::Tensor& self, const at::Tensor& other);
at::Tensor pointwise_float(const at::Tensor& self);
// The same with a dtype of its own.
at::Tensor pointwise_to(c10::ScalarType dtype, std::initializer_list<at::Tensor> inputs);

// A number as it takes part in type promotion.
at::Tensor number(const at::Scalar& value);

// A tensor's value, undefined where there is none.
at::Tensor value(const OptTensor& tensor);

// Throws where a result cannot be cast to what an argument to write to has.
void check_castable(c10::ScalarType from, c10::ScalarType to);

// Throws what a real kernel does that was not compiled for a dtype: "hardswish" not implemented for 'Long'.
void require_floating(const at::Tensor& tensor, const char* kernel);
void require_floating_or_complex(const at::Tensor& tensor, const char* kernel);

}  // namespace torchfake
