// Reductions without a structured kernel: those that select an element, and those over all elements.
#include <ATen/MemoryOverlap.h>
#include <ATen/native/ReduceOpsUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/isin_meta_dispatch.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/sum_meta_dispatch.h>

#include <torchfake/core/compat.h>
#include <torchfake/rules/forms.h>
#include <torchfake/rules/results.h>

namespace torchfake {

namespace {

using TwoTensors = std::tuple<at::Tensor, at::Tensor>;
using TwoOuts = std::tuple<at::Tensor&, at::Tensor&>;

at::Tensor extremum(const at::Tensor& self) {
  TORCH_CHECK(
      self.numel() > 0,
      "max(): Expected reduction dim to be specified for input.numel() == 0. Specify the reduction dim with the 'dim' "
      "argument.");
  TORCH_CHECK_NOT_IMPLEMENTED(!self.is_complex(), "\"max_all\" not implemented for '", self.scalar_type(), "'");
  return empty({}, self.scalar_type());
}

// The CPU fills the argument with the extremum, even of an empty tensor; a GPU reduces into it.
at::Tensor& extremum_out(const at::Tensor& self, at::Tensor& out) {
  if (!claimed_device().is_cpu()) {
    write_out(out, extremum(self), OutDtype::kSame);
    return out;
  }
  TORCH_CHECK_NOT_IMPLEMENTED(!self.is_complex(), "\"max_all\" not implemented for '", self.scalar_type(), "'");
  check_castable(self.scalar_type(), out.scalar_type());
  at::native::resize_output(out, {});
  return out;
}

// Searches a tensor for a number: PyTorch's meta kernel does not set the size of this result.
at::Tensor is_number_in(const at::Scalar& element, const at::Tensor& test_elements, bool assume_unique, bool invert) {
  return empty({}, at::meta::isin(element, test_elements, assume_unique, invert).scalar_type());
}

void require_ordered(const at::Tensor& self, const char* kernel) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !self.is_complex() && self.scalar_type() != c10::kBool,
      '"',
      kernel,
      "\" not implemented for '",
      self.scalar_type(),
      "'");
}

at::Tensor median(const at::Tensor& self) {
  require_ordered(self, "median");
  return empty({}, self.scalar_type());
}

std::vector<int64_t> without(const at::Tensor& self, int64_t dim, bool keepdim) {
  std::vector<int64_t> sizes = self.sizes().vec();
  if (self.dim() == 0) {
    return sizes;
  }
  if (keepdim) {
    sizes[dim] = 1;
  } else {
    sizes.erase(sizes.begin() + dim);
  }
  return sizes;
}

TwoTensors chosen(const at::Tensor& self, int64_t dim, bool keepdim, const char* name) {
  const int64_t wrapped = c10::maybe_wrap_dim(dim, self.dim());
  at::native::zero_numel_check_dims(self, wrapped, name);
  const std::vector<int64_t> sizes = without(self, wrapped, keepdim);
  return {empty(sizes, self.scalar_type()), empty(sizes, c10::kLong)};
}

TwoOuts write_chosen(const TwoTensors& results, at::Tensor& values, at::Tensor& indices) {
  write_out(values, std::get<0>(results), OutDtype::kSame);
  write_out(indices, std::get<1>(results), OutDtype::kSame);
  return {values, indices};
}

TwoOuts median_out(const at::Tensor& self, int64_t dim, bool keepdim, at::Tensor& values, at::Tensor& indices) {
  require_ordered(self, "median_out");
  return write_chosen(chosen(self, dim, keepdim, "median()"), values, indices);
}

TwoOuts kthvalue_out(
    const at::Tensor& self,
    int64_t k,
    int64_t dim,
    bool keepdim,
    at::Tensor& values,
    at::Tensor& indices) {
  const int64_t wrapped = c10::maybe_wrap_dim(dim, self.dim());
  at::native::zero_numel_check_dims(self, wrapped, "kthvalue()");
  at::assert_no_overlap(values, self);
  TORCH_CHECK(k >= 1 && k <= at::native::ensure_nonempty_size(self, wrapped), "selected index k out of range");
  TORCH_CHECK(
      values.scalar_type() == self.scalar_type() && indices.scalar_type() == c10::kLong,
      "kthvalue(): expected values of ",
      self.scalar_type(),
      " and indices of Long, got ",
      values.scalar_type(),
      " and ",
      indices.scalar_type());
  const std::vector<int64_t> sizes = without(self, wrapped, keepdim);
  values.resize_(sizes);
  indices.resize_(sizes);
  return {values, indices};
}

// The helpers of cummax and cummin write existing tensors.
void cumulative_helper(
    const at::Tensor& self,
    const at::Tensor& /*values*/,
    const at::Tensor& /*indices*/,
    int64_t /*dim*/) {
  TORCH_CHECK_NOT_IMPLEMENTED(!self.is_complex(), "\"cummax_cpu\" not implemented for '", self.scalar_type(), "'");
}

at::Tensor logcumsumexp(const at::Tensor& self, int64_t dim) {
  c10::maybe_wrap_dim(dim, self.dim());
  require_floating_or_complex(self, "logcumsumexp_out_cpu");
  return contiguous_like(self);
}

TwoTensors mode(const at::Tensor& self, int64_t dim, bool keepdim) {
  TORCH_CHECK_NOT_IMPLEMENTED(!self.is_complex(), "\"mode_cpu\" not implemented for '", self.scalar_type(), "'");
  return chosen(self, dim, keepdim, "mode()");
}

at::Tensor nansum(
    const at::Tensor& self,
    at::OptionalIntArrayRef dim,
    bool keepdim,
    std::optional<at::ScalarType> dtype) {
  compat::check_dtype(
      "nansum", !self.is_complex() || !claimed_device().is_cpu(), "nansum on CPU does not support complex inputs");
  return at::meta::sum(self, dim, keepdim, dtype);
}

at::Tensor& nansum_out(
    const at::Tensor& self,
    at::OptionalIntArrayRef dim,
    bool keepdim,
    std::optional<at::ScalarType> dtype,
    at::Tensor& out) {
  compat::check_dtype(
      "nansum", !self.is_complex() || !claimed_device().is_cpu(), "nansum on CPU does not support complex inputs");
  return at::meta::sum_outf(self, dim, keepdim, dtype, out);
}

at::Tensor prod(const at::Tensor& self, std::optional<at::ScalarType> dtype) {
  return empty({}, at::native::get_dtype_from_self(self, dtype, /*promote_integers=*/true));
}

at::Tensor count_nonzero(const at::Tensor& self, c10::IntArrayRef dim) {
  return dim.empty() ? empty({}, c10::kLong) : at::sum(at::ne(self, 0), dim);
}

TwoTensors aminmax(const at::Tensor& self) {
  return at::aminmax(self);
}

TwoTensors aminmax_dim(const at::Tensor& self, int64_t dim, bool keepdim) {
  return at::aminmax(self, dim, keepdim);
}

at::Tensor trace(const at::Tensor& self) {
  TORCH_CHECK(self.dim() == 2, "trace: expected a matrix, but got tensor with dim ", self.dim());
  return empty({}, at::native::get_dtype_from_self(self, std::nullopt, /*promote_integers=*/true));
}

at::Tensor product(const at::Tensor& self, const at::Tensor& other) {
  TORCH_CHECK(
      self.dim() == 1 && other.dim() == 1,
      "1D tensors expected, but got ",
      self.dim(),
      "D and ",
      other.dim(),
      "D tensors");
  TORCH_CHECK(
      self.scalar_type() == other.scalar_type(),
      "dot : expected both vectors to have same dtype, but found ",
      self.scalar_type(),
      " and ",
      other.scalar_type());
  TORCH_CHECK(
      self.numel() == other.numel(),
      "inconsistent tensor size, expected tensor [",
      self.numel(),
      "] and src [",
      other.numel(),
      "] to have the same number of elements, but got ",
      self.numel(),
      " and ",
      other.numel(),
      " elements respectively");
  return empty({}, self.scalar_type());
}

// With two conjugated views the result is lazily conjugated; likewise for a conjugated second argument of vdot.
at::Tensor dot(const at::Tensor& self, const at::Tensor& other) {
  const at::Tensor result = product(self, other);
  return self.is_complex() && self.is_conj() && other.is_conj() ? result.conj() : result;
}

at::Tensor vdot(const at::Tensor& self, const at::Tensor& other) {
  const at::Tensor result = product(self, other);
  return self.is_complex() && !self.is_conj() && other.is_conj() ? result.conj() : result;
}

}  // namespace

KernelList selection_kernels() {
  namespace ops = at::_ops;
  return {
      kernel<ops::max, &extremum>(),
      kernel<ops::max_unary_out, &extremum_out>(),
      kernel<ops::min, &extremum>(),
      kernel<ops::min_unary_out, &extremum_out>(),
      kernel<ops::isin_Scalar_Tensor, &is_number_in>(),
      out_form<ops::isin_Scalar_Tensor_out, ops::isin_Scalar_Tensor>(OutDtype::kSame),
      kernel<ops::median, &median>(),
      kernel<ops::nanmedian, &median>(),
      kernel<ops::median_dim_values, &median_out>(),
      kernel<ops::nanmedian_dim_values, &median_out>(),
      kernel<ops::kthvalue_values, &kthvalue_out>(),
      kernel<ops::_cummax_helper, &cumulative_helper>(),
      kernel<ops::_cummin_helper, &cumulative_helper>(),
      kernel<ops::_logcumsumexp, &logcumsumexp>(),
      out_form<ops::_logcumsumexp_out, ops::_logcumsumexp>(OutDtype::kSame),
      kernel<ops::mode, &mode>(),
      out_form<ops::mode_values, ops::mode>(OutDtype::kSame),
      kernel<ops::nansum, &nansum>(),
      kernel<ops::nansum_out, &nansum_out>(),
      kernel<ops::prod, &prod>(),
      kernel<ops::count_nonzero_dim_IntList, &count_nonzero>(),
      kernel<ops::_aminmax, &aminmax>(),
      kernel<ops::_aminmax_dim, &aminmax_dim>(),
      kernel<ops::trace, &trace>(),
      kernel<ops::dot, &dot>(),
      kernel<ops::vdot, &vdot>(),
      out_form<ops::var_correction_out, ops::var_correction>(),
      out_form<ops::std_correction_out, ops::std_correction>(),
  };
}

}  // namespace torchfake
