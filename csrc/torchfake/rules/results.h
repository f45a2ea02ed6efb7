// The tensors that kernels return: fresh, on meta, with the strides of a real kernel's results.
#pragma once

#include <ATen/core/Tensor.h>

namespace torchfake {

using OptTensor = std::optional<at::Tensor>;

at::Tensor empty(c10::IntArrayRef sizes, c10::ScalarType dtype);

// Tensors with the sizes and the dtype of another: contiguous; or with its strides, made dense as by empty_like; or in
// channels-last order if the tensor is.
at::Tensor contiguous_like(const at::Tensor& tensor);
at::Tensor contiguous_like(const at::Tensor& tensor, c10::ScalarType dtype);
at::Tensor strided_like(const at::Tensor& tensor);
at::Tensor strided_like(const at::Tensor& tensor, c10::ScalarType dtype);
at::Tensor formatted_like(const at::Tensor& tensor);
at::Tensor formatted(c10::IntArrayRef sizes, const at::Tensor& like);

// Column-major matrices, as in LAPACK.
at::Tensor column_major(c10::IntArrayRef sizes, c10::ScalarType dtype);

// The result of a pointwise kernel: broadcast, in the promoted dtype of the inputs, laid out by TensorIterator.
at::Tensor pointwise(const at::Tensor& self);
at::Tensor pointwise(const at::Tensor& self, const at::Tensor& other);
at::Tensor pointwise_float(const at::Tensor& self);
// The same in a given dtype.
at::Tensor pointwise_to(c10::ScalarType dtype, std::initializer_list<at::Tensor> inputs);

// A number as a tensor, with its role in type promotion.
at::Tensor number(const at::Scalar& value);

// The tensor, undefined if absent.
at::Tensor value(const OptTensor& tensor);

// Throws if a result cannot be cast to the dtype of the argument it is written to.
void check_castable(c10::ScalarType from, c10::ScalarType to);

// Throws the error of a real kernel that is not compiled for a dtype: "hardswish" not implemented for 'Long'.
void require_floating(const at::Tensor& tensor, const char* kernel);
void require_floating_or_complex(const at::Tensor& tensor, const char* kernel);

}  // namespace torchfake
