// Operators that rearrange elements: flip, roll, repeat.
#include <ATen/EmptyTensor.h>
#include <ATen/WrapDimUtilsMulti.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/index_add_meta_dispatch.h>
#include <ATen/ops/index_reduce_meta_dispatch.h>

#include <torchfake/rules/forms.h>

namespace torchfake {

namespace {

at::Tensor flip(const at::Tensor& self, at::IntArrayRef dims) {
  at::dim_list_to_bitset(dims, self.dim());
  return at::empty_like(self, at::MemoryFormat::Preserve);
}

at::Tensor roll(const at::Tensor& self, at::IntArrayRef shifts, at::IntArrayRef dims) {
  if (self.numel() == 0) {
    return self.clone(at::MemoryFormat::Preserve);
  }
  if (dims.size() == 1 && shifts.size() == 1) {
    const int64_t dim = at::maybe_wrap_dim(dims[0], self.dim());
    // The CPU concatenates two slices; a GPU writes to a contiguous tensor.
    if (!claimed_device().is_cpu()) {
      return at::empty_like(self, at::MemoryFormat::Contiguous);
    }
    const int64_t size = self.size(dim);
    const int64_t start = ((size - shifts[0]) % size + size) % size;
    return at::cat({self.narrow(dim, start, size - start), self.narrow(dim, 0, start)}, dim);
  }
  TORCH_CHECK(!shifts.empty(), "`shifts` required");
  if (dims.empty() && shifts.size() == 1) {
    return roll(self.contiguous().view(self.numel()), shifts[0], 0).view(self.sizes());
  }
  TORCH_CHECK(
      shifts.size() == dims.size(),
      "shifts and dimensions must align. shifts: ",
      shifts.size(),
      ", dims:",
      dims.size());
  return roll(roll(self, shifts[0], dims[0]), shifts.slice(1), dims.slice(1));
}

at::Tensor index_select(const at::Tensor& self, int64_t dim, const at::Tensor& index) {
  const int64_t wrapped = at::maybe_wrap_dim(dim, self.dim());
  TORCH_CHECK_INDEX(index.dim() <= 1, "index_select(): Index is supposed to be a vector");
  TORCH_CHECK(
      index.scalar_type() == c10::kLong || index.scalar_type() == c10::kInt,
      "index_select(): Expected dtype int32 or int64 for index");
  if (self.dim() == 0) {
    TORCH_CHECK(
        index.numel() == 1, "index_select(): Index to scalar can have only 1 value, got ", index.numel(), " value(s)");
    return at::detail::empty_meta({}, self.scalar_type());
  }
  std::vector<int64_t> sizes = self.sizes().vec();
  sizes[wrapped] = index.numel();
  return at::detail::empty_meta(sizes, self.scalar_type());
}

// For empty slices: PyTorch's meta kernels inspect the first slice, which does not exist. The real kernels do nothing.
bool adds_nothing(const at::Tensor& self, int64_t dim, const at::Tensor& index, const at::Tensor& source) {
  if (index.numel() != 0 || source.dim() == 0 || source.dim() != self.dim()) {
    return false;
  }
  return source.size(at::maybe_wrap_dim(dim, self.dim())) == 0 && source.scalar_type() == self.scalar_type();
}

at::Tensor index_add(
    const at::Tensor& self,
    int64_t dim,
    const at::Tensor& index,
    const at::Tensor& source,
    const at::Scalar& alpha) {
  return adds_nothing(self, dim, index, source) ? at::Tensor(at::detail::empty_meta(self.sizes(), self.scalar_type()))
                                                : at::meta::index_add(self, dim, index, source, alpha);
}

at::Tensor& index_add_(
    at::Tensor& self,
    int64_t dim,
    const at::Tensor& index,
    const at::Tensor& source,
    const at::Scalar& alpha) {
  return adds_nothing(self, dim, index, source) ? self : at::meta::index_add_(self, dim, index, source, alpha);
}

at::Tensor index_reduce(
    const at::Tensor& self,
    int64_t dim,
    const at::Tensor& index,
    const at::Tensor& source,
    c10::string_view reduce,
    bool include_self) {
  return adds_nothing(self, dim, index, source)
      ? at::Tensor(at::detail::empty_meta(self.sizes(), self.scalar_type()))
      : at::meta::index_reduce(self, dim, index, source, reduce, include_self);
}

at::Tensor& index_reduce_(
    at::Tensor& self,
    int64_t dim,
    const at::Tensor& index,
    const at::Tensor& source,
    c10::string_view reduce,
    bool include_self) {
  return adds_nothing(self, dim, index, source)
      ? self
      : at::meta::index_reduce_(self, dim, index, source, reduce, include_self);
}

// The CPU has its own kernel with its own checks; elsewhere it is a copy of narrow().
at::Tensor narrow_copy(const at::Tensor& self, int64_t dim, int64_t start, int64_t length) {
  if (!claimed_device().is_cpu()) {
    return self.narrow(dim, start, length).clone(at::MemoryFormat::Contiguous);
  }
  TORCH_CHECK(self.dim() > 0, "narrow() cannot be applied to a 0-dim tensor.");
  TORCH_CHECK(dim < self.dim(), "narrow_copy: dimension ", dim, " of a tensor of ", self.dim(), " dimensions");
  std::vector<int64_t> sizes = self.sizes().vec();
  int64_t& size = sizes[at::maybe_wrap_dim(dim, self.dim())];
  TORCH_CHECK_INDEX(
      -size <= start && start <= size,
      "start out of range (expected to be in range of [",
      -size,
      ", ",
      size,
      "], but got ",
      start,
      ")");
  const int64_t from = start < 0 ? start + size : start;
  TORCH_CHECK(
      length >= 0 && from <= size - length,
      "start (",
      from,
      ") + length (",
      length,
      ") exceeds dimension size (",
      size,
      ").");
  size = length;
  return at::detail::empty_meta(sizes, self.scalar_type());
}

// The concatenation in stack(), if stack() does not write the parts itself. The CPU inserts the new dimension;
// elsewhere the caller is expected to have done so.
at::Tensor& stack_out(at::TensorList tensors, int64_t dim, at::Tensor& out) {
  TORCH_CHECK(!tensors.empty(), "stack expects a non-empty TensorList");
  if (!claimed_device().is_cpu()) {
    return at::cat_out(out, tensors, dim);
  }
  std::vector<at::Tensor> parts;
  for (const at::Tensor& tensor : tensors) {
    TORCH_CHECK(
        tensor.sizes() == tensors[0].sizes(),
        "stack expects each tensor to be equal size, but got ",
        tensors[0].sizes(),
        " at entry 0 and ",
        tensor.sizes(),
        " beside it");
    parts.push_back(tensor.unsqueeze(dim));
  }
  return at::cat_out(out, parts, dim);
}

// Only for sparse tensors, but its functional form calls it with dense ones.
const at::Tensor& resize_as_sparse_(const at::Tensor& /*self*/, const at::Tensor& /*the_template*/) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "Could not run 'aten::resize_as_sparse_': it has kernels for sparse tensors only.");
}

at::Tensor embedding_dense_backward(
    const at::Tensor& grad_output,
    const at::Tensor& /*indices*/,
    int64_t num_weights,
    int64_t /*padding_idx*/,
    bool /*scale_grad_by_freq*/) {
  return at::detail::empty_meta({num_weights, grad_output.size(-1)}, grad_output.scalar_type());
}

// The selected elements fill the front, zeros the rest: the shape does not depend on values.
at::Tensor masked_scatter_backward(const at::Tensor& grad_output, const at::Tensor& /*mask*/, at::IntArrayRef sizes) {
  return at::detail::empty_meta(sizes, grad_output.scalar_type());
}

at::Tensor repeat(const at::Tensor& self, at::IntArrayRef repeats) {
  TORCH_CHECK(
      static_cast<int64_t>(repeats.size()) >= self.dim(),
      "Number of dimensions of repeat dims can not be smaller than number of dimensions of tensor");
  std::vector<int64_t> sizes = repeats.vec();
  const size_t added = sizes.size() - static_cast<size_t>(self.dim());
  for (size_t i = added; i < sizes.size(); ++i) {
    sizes[i] *= self.size(static_cast<int64_t>(i - added));
  }
  return at::detail::empty_meta(sizes, self.scalar_type());
}

}  // namespace

KernelList rearranging_kernels() {
  return {
      native_kernel<at::Tensor(const at::Tensor&, at::IntArrayRef), &flip>("aten::flip"),
      native_kernel<at::Tensor(const at::Tensor&, at::IntArrayRef, at::IntArrayRef), &roll>("aten::roll"),
      native_kernel<at::Tensor(const at::Tensor&, at::IntArrayRef), &repeat>("aten::repeat"),
      native_kernel<decltype(index_select), &index_select>("aten::index_select"),
      native_kernel<decltype(index_add), &index_add>("aten::index_add"),
      native_kernel<decltype(index_add_), &index_add_>("aten::index_add_"),
      native_kernel<decltype(index_reduce), &index_reduce>("aten::index_reduce"),
      native_kernel<decltype(index_reduce_), &index_reduce_>("aten::index_reduce_"),
      kernel<at::_ops::_stack_out, &stack_out>(),
      kernel<at::_ops::resize_as_sparse_, &resize_as_sparse_>(),
      kernel<at::_ops::narrow_copy, &narrow_copy>(),
      out_form<at::_ops::narrow_copy_out, at::_ops::narrow_copy>(OutDtype::kSame),
      native_kernel<decltype(embedding_dense_backward), &embedding_dense_backward>("aten::embedding_dense_backward"),
      native_kernel<decltype(masked_scatter_backward), &masked_scatter_backward>("aten::masked_scatter_backward"),
  };
}

}  // namespace torchfake
