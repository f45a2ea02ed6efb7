// Operators that write to some elements of a tensor.
#include <ATen/Dispatch.h>
#include <ATen/MemoryOverlap.h>

#include <torchfake/core/call.h>
#include <torchfake/rules/forms.h>

namespace torchfake {

namespace {

// index_fill_(self, dim, index, value). An expanded tensor is allowed, with a warning.
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

// masked_fill_(self, mask, value), which allows an expanded tensor.
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
    // Throws if the value does not fit.
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

// masked_scatter_(self, mask, source). How many elements of the source are used depends on the values of the mask.
at::Tensor& masked_scatter_(at::Tensor& self, const at::Tensor& mask, const at::Tensor& source) {
  at::assert_no_internal_overlap(self);
  TORCH_CHECK(
      self.scalar_type() == source.scalar_type(),
      "masked_scatter: expected self and source to have same dtypes but got ",
      self.scalar_type(),
      " and ",
      source.scalar_type());
  TORCH_CHECK(
      mask.scalar_type() == c10::kBool,
      "masked_scatter_ only supports boolean masks, but got mask with dtype ",
      mask.scalar_type());
  mask.expand(self.sizes());
  return self;
}

// put_(self, index, source): positions in the flattened tensor.
at::Tensor& put_(at::Tensor& self, const at::Tensor& index, const at::Tensor& source) {
  TORCH_CHECK(
      index.scalar_type() == c10::kLong, "put_(): Expected a long tensor for index, but got ", index.scalar_type());
  TORCH_CHECK(
      self.scalar_type() == source.scalar_type(),
      "put_(): self and source expected to have the same dtype, but got self.dtype = ",
      self.scalar_type(),
      " and source.dtype = ",
      source.scalar_type());
  TORCH_CHECK_INDEX(
      source.numel() == index.numel(),
      "put_(): Expected source and index to have the same number of elements, but got source.numel() = ",
      source.numel(),
      ", index.numel() = ",
      index.numel());
  TORCH_CHECK_INDEX(self.numel() != 0 || index.numel() == 0, "put_(): Tried to put elements into an empty tensor");
  at::assert_no_internal_overlap(self);
  at::assert_no_overlap(self, index);
  at::assert_no_overlap(self, source);
  return self;
}

using Indices = c10::List<std::optional<at::Tensor>>;

// Each mask counts as an index along every dimension that it covers.
void check_indices(const at::Tensor& self, const Indices& indices) {
  int64_t dims = 0;
  for (const std::optional<at::Tensor> index : indices) {
    if (!index || !index->defined()) {
      ++dims;
      continue;
    }
    at::assert_no_overlap(self, *index);
    if (!is_mask(index->scalar_type())) {
      ++dims;
      continue;
    }
    for (int64_t i = 0; i < index->dim() && dims < self.dim(); ++i, ++dims) {
      TORCH_CHECK_INDEX(
          index->size(i) == self.size(dims),
          "The shape of the mask ",
          index->sizes(),
          " at index ",
          i,
          " does not match the shape of the indexed tensor ",
          self.sizes(),
          " at index ",
          dims);
    }
  }
  TORCH_CHECK_INDEX(
      static_cast<int64_t>(indices.size()) <= self.dim(),
      "too many indices for tensor of dimension ",
      self.dim(),
      " (got ",
      indices.size(),
      ')');
}

// x[mask] = number is a fill, which accepts a number of any dtype.
bool fills(const Indices& indices, const at::Tensor& values, bool accumulate) {
  if (accumulate || values.numel() != 1) {
    return false;
  }
  size_t masks = 0;
  for (const std::optional<at::Tensor> index : indices) {
    if (index && index->defined()) {
      masks += is_mask(index->scalar_type()) ? 1 : 2;
    }
  }
  return masks == 1;
}

// _index_put_impl_(self, indices, values, accumulate), which allows an expanded tensor. That the values fit is checked
// earlier.
at::Tensor& index_put_(at::Tensor& self, const Indices& indices, const at::Tensor& values, bool accumulate) {
  at::assert_no_overlap(self, values);
  check_indices(self, indices);
  TORCH_CHECK(
      self.scalar_type() == values.scalar_type() || fills(indices, values, accumulate),
      "Index put requires the source and destination dtypes match, got ",
      self.scalar_type(),
      " for the destination and ",
      values.scalar_type(),
      " for the source.");
  return self;
}

}  // namespace

KernelList filling_kernels() {
  namespace ops = at::_ops;
  return {
      kernel<ops::masked_scatter_, &masked_scatter_>(),
      kernel<ops::put_, &put_>(),
      kernel<ops::_index_put_impl_, &index_put_>(),
      kernel<ops::index_fill__int_Scalar, &index_fill_scalar>(),
      kernel<ops::index_fill__int_Tensor, &index_fill_tensor>(),
      kernel<ops::masked_fill__Scalar, &masked_fill_scalar>(),
      kernel<ops::masked_fill__Tensor, &masked_fill_tensor>(),
  };
}

}  // namespace torchfake
