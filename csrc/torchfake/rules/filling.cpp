// Operators that write one value to some places of a tensor.
#include <ATen/Dispatch.h>
#include <ATen/MemoryOverlap.h>

#include <torchfake/rules/forms.h>

namespace torchfake {

namespace {

// index_fill_(self, dim, index, value). It fills an expanded tensor too, and warns.
void check_index_fill(const at::Tensor& self, int64_t dim, const at::Tensor& index, bool value_is_complex) {
  TORCH_CHECK_INDEX(index.scalar_type() == c10::kLong, "index_fill_(): Expected dtype int64 for index.");
  at::assert_no_overlap(self, index);
  TORCH_CHECK(
      self.is_complex() || !value_is_complex,
      "index_fill_(): Converting complex Scalar to non-complex type is not supported");
  c10::maybe_wrap_dim(dim, std::max<int64_t>(self.dim(), 1));
  TORCH_CHECK(index.dim() <= 1, "Index has to be a vector/scalar");
}

at::Tensor& index_fill_scalar(at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Scalar& value) {
  check_index_fill(self, dim, index, value.isComplex());
  return self;
}

at::Tensor& index_fill_tensor(at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Tensor& value) {
  TORCH_CHECK(
      value.dim() == 0,
      "index_fill_ only supports a 0-dimensional value tensor, but got tensor with ",
      value.dim(),
      " dimension(s).");
  check_index_fill(self, dim, index, value.is_complex());
  return self;
}

// masked_fill_(self, mask, value), on an expanded tensor too.
void check_masked_fill(const at::Tensor& self, const at::Tensor& mask) {
  TORCH_CHECK(
      mask.scalar_type() == c10::kBool,
      "masked_fill_ only supports boolean masks, but got mask with dtype ",
      mask.dtype());
  at::assert_no_partial_overlap(self, mask.expand(self.sizes()));
}

at::Tensor& masked_fill_scalar(at::Tensor& self, const at::Tensor& mask, const at::Scalar& value) {
  check_masked_fill(self, mask);
  if (!c10::isFloat8Type(self.scalar_type()) && !c10::isBarebonesUnsignedType(self.scalar_type())) {
    // Throws where the value does not fit.
    AT_DISPATCH_ALL_TYPES_AND_COMPLEX_AND4(
        c10::kBool, c10::kBFloat16, c10::kHalf, c10::kComplexHalf, self.scalar_type(), "masked_fill", [&] {
          value.to<scalar_t>();
        });
  }
  return self;
}

at::Tensor& masked_fill_tensor(at::Tensor& self, const at::Tensor& mask, const at::Tensor& value) {
  TORCH_CHECK(
      value.dim() == 0,
      "masked_fill_ only supports a 0-dimensional value tensor, but got tensor with ",
      value.dim(),
      " dimension(s).");
  check_masked_fill(self, mask);
  return self;
}

}  // namespace

KernelList filling_kernels() {
  namespace ops = at::_ops;
  return {
      kernel<ops::index_fill__int_Scalar, &index_fill_scalar>(),
      kernel<ops::index_fill__int_Tensor, &index_fill_tensor>(),
      kernel<ops::masked_fill__Scalar, &masked_fill_scalar>(),
      kernel<ops::masked_fill__Tensor, &masked_fill_tensor>(),
  };
}

}  // namespace torchfake
