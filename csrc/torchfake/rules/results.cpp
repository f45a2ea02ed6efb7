// The tensors that kernels return.
#include <torchfake/rules/results.h>

#include <ATen/EmptyTensor.h>
#include <ATen/TensorIterator.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

namespace torchfake {

at::Tensor empty(c10::IntArrayRef sizes, c10::ScalarType dtype) {
  return at::detail::empty_meta(sizes, dtype);
}

at::Tensor contiguous_like(const at::Tensor& tensor) {
  return empty(tensor.sizes(), tensor.scalar_type());
}

at::Tensor contiguous_like(const at::Tensor& tensor, c10::ScalarType dtype) {
  return empty(tensor.sizes(), dtype);
}

at::Tensor strided_like(const at::Tensor& tensor) {
  return at::empty_like(tensor, at::MemoryFormat::Preserve);
}

at::Tensor strided_like(const at::Tensor& tensor, c10::ScalarType dtype) {
  return at::empty_like(tensor, tensor.options().dtype(dtype), at::MemoryFormat::Preserve);
}

at::Tensor formatted(c10::IntArrayRef sizes, const at::Tensor& like) {
  const at::MemoryFormat format = like.suggest_memory_format();
  return at::detail::empty_meta(
      sizes,
      like.scalar_type(),
      format == at::MemoryFormat::ChannelsLast && sizes.size() != 4 ? at::MemoryFormat::Contiguous : format);
}

at::Tensor formatted_like(const at::Tensor& tensor) {
  return formatted(tensor.sizes(), tensor);
}

at::Tensor column_major(c10::IntArrayRef sizes, c10::ScalarType dtype) {
  TORCH_CHECK(sizes.size() >= 2, "expected a matrix or a batch of matrices, got a tensor of size ", sizes);
  std::vector<int64_t> turned = sizes.vec();
  std::swap(turned[turned.size() - 1], turned[turned.size() - 2]);
  return empty(turned, dtype).transpose(-2, -1);
}

at::Tensor pointwise(const at::Tensor& self) {
  at::Tensor result;
  return at::TensorIterator::unary_op(result, self).output();
}

at::Tensor pointwise(const at::Tensor& self, const at::Tensor& other) {
  at::Tensor result;
  return at::TensorIterator::binary_op(result, self, other).output();
}

at::Tensor pointwise_float(const at::Tensor& self) {
  at::Tensor result;
  return at::TensorIterator::unary_float_op(result, self).output();
}

at::Tensor pointwise_to(c10::ScalarType dtype, std::initializer_list<at::Tensor> inputs) {
  at::TensorIteratorConfig config;
  config.check_all_same_dtype(false).check_all_same_device(false);
  config.declare_static_dtype_and_device(dtype, c10::Device(c10::kMeta));
  config.add_owned_output(at::Tensor());
  for (const at::Tensor& input : inputs) {
    config.add_owned_const_input(input);
  }
  return config.build().output();
}

at::Tensor number(const at::Scalar& value) {
  at::Tensor result = empty({}, value.type());
  result.unsafeGetTensorImpl()->set_wrapped_number(true);
  return result;
}

at::Tensor value(const OptTensor& tensor) {
  return tensor ? *tensor : at::Tensor();
}

void check_castable(c10::ScalarType from, c10::ScalarType to) {
  TORCH_CHECK(c10::canCast(from, to), "result type ", from, " can't be cast to the desired output type ", to);
}

void require_floating(const at::Tensor& tensor, const char* kernel) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      tensor.is_floating_point(), '"', kernel, "\" not implemented for '", tensor.scalar_type(), "'");
}

void require_floating_or_complex(const at::Tensor& tensor, const char* kernel) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      tensor.is_floating_point() || tensor.is_complex(),
      '"',
      kernel,
      "\" not implemented for '",
      tensor.scalar_type(),
      "'");
}

}  // namespace torchfake
