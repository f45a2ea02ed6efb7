// Searching in sorted rows, histograms, and selecting elements by position.
#include <ATen/native/BucketizationUtils.h>
#include <ATen/native/TensorFactories.h>

#include <torchfake/core/errors.h>
#include <torchfake/rules/forms.h>
#include <torchfake/rules/results.h>

namespace torchfake {

namespace {

using TwoTensors = std::tuple<at::Tensor, at::Tensor>;

c10::ScalarType index_dtype(bool out_int32) {
  return out_int32 ? c10::kInt : c10::kLong;
}

// Checks a sorter except for its values, which may be out of range.
void check_sorter(const at::Tensor& sorted_sequence, const OptTensor& sorter) {
  if (!sorter || !sorter->defined()) {
    return;
  }
  TORCH_CHECK(
      sorter->sizes() == sorted_sequence.sizes(),
      "torch.searchsorted(): boundary and sorter must have the same size, but got boundary tensor ",
      sorted_sequence.sizes(),
      "and got sorter tensor ",
      sorter->sizes());
  TORCH_CHECK(
      sorter->scalar_type() == c10::kLong,
      "torch.searchsorted(): sorter must be a tensor of long dtype but got dtype ",
      sorter->scalar_type());
}

at::Tensor places_in(
    const at::Tensor& sorted_sequence,
    const at::Tensor& self,
    bool out_int32,
    bool right,
    std::optional<std::string_view> side,
    const OptTensor& sorter) {
  at::Tensor result = empty(self.sizes(), index_dtype(out_int32));
  check_sorter(sorted_sequence, sorter);
  at::native::searchsorted_pre_check(sorted_sequence, self, result, out_int32, right, side, at::Tensor());
  return result;
}

at::Tensor place_in(
    const at::Tensor& sorted_sequence,
    const at::Scalar& self,
    bool out_int32,
    bool right,
    std::optional<std::string_view> side,
    const OptTensor& sorter) {
  const at::Tensor place = empty({}, self.type());
  TORCH_CHECK(
      sorted_sequence.dim() == 1,
      "input value can be a scalar only when boundaries tensor dimension is 1, but we got boundaries tensor dim(",
      sorted_sequence.dim(),
      ")");
  at::Tensor result = empty({}, index_dtype(out_int32));
  check_sorter(sorted_sequence, sorter);
  at::native::searchsorted_pre_check(
      sorted_sequence,
      contiguous_like(place, sorted_sequence.scalar_type()),
      result,
      out_int32,
      right,
      side,
      at::Tensor());
  return result;
}

void check_boundaries(const at::Tensor& boundaries) {
  TORCH_CHECK(boundaries.dim() == 1, "boundaries tensor must be 1 dimension, but got dim(", boundaries.dim(), ")");
}

at::Tensor bucketize(const at::Tensor& self, const at::Tensor& boundaries, bool out_int32, bool right) {
  check_boundaries(boundaries);
  return places_in(boundaries, self, out_int32, right, std::nullopt, std::nullopt);
}

at::Tensor bucketize_scalar(const at::Scalar& self, const at::Tensor& boundaries, bool out_int32, bool right) {
  check_boundaries(boundaries);
  return place_in(boundaries, self, out_int32, right, std::nullopt, std::nullopt);
}

at::Tensor histc(const at::Tensor& self, int64_t bins, const at::Scalar& min, const at::Scalar& max) {
  TORCH_CHECK(bins > 0, "bins must be > 0");
  if (claimed_device().is_cpu()) {
    require_floating(self, "histogram_cpu");
  }
  TORCH_CHECK(min.toDouble() <= max.toDouble(), "max must be larger than min");
  return empty({bins}, self.scalar_type());
}

void check_histogram(const at::Tensor& self, const at::Tensor& weight) {
  TORCH_CHECK(
      self.is_floating_point() && !c10::isFloat8Type(self.scalar_type()),
      "\"histogram_cpu\" not implemented for '",
      self.scalar_type(),
      "'");
  TORCH_CHECK(
      !weight.defined() || weight.sizes() == self.sizes(),
      "histogram(): if weight tensor is provided it should have the same shape as the input tensor, but got ",
      weight.defined() ? weight.sizes() : c10::IntArrayRef());
  TORCH_CHECK(
      !weight.defined() || weight.scalar_type() == self.scalar_type(),
      "histogram(): if weight tensor is provided, input tensor and weight tensor should have the same dtype");
}

TwoTensors histogram(
    const at::Tensor& self,
    int64_t bins,
    std::optional<c10::ArrayRef<double>> range,
    const OptTensor& weight) {
  check_histogram(self, value(weight));
  TORCH_CHECK(bins > 0, "histogram(): bins must be > 0, but got ", bins);
  TORCH_CHECK(!range || range->size() == 2, "histogram(): range should have 2 elements");
  return {empty({bins}, self.scalar_type()), empty({bins + 1}, self.scalar_type())};
}

TwoTensors histogram_between(const at::Tensor& self, const at::Tensor& bins, const OptTensor& weight) {
  check_histogram(self, value(weight));
  TORCH_CHECK(bins.dim() == 1, "histogram(): bins tensor should have one dimension, but got ", bins.dim());
  TORCH_CHECK(bins.numel() > 0, "histogram(): bins tensor should have at least 1 element");
  TORCH_CHECK(
      bins.scalar_type() == self.scalar_type(),
      "histogram(): input tensor and bins tensors should have the same dtype");
  return {empty({bins.numel() - 1}, self.scalar_type()), empty({bins.numel()}, self.scalar_type())};
}

// histogramdd, for points whose dimension is the size of the innermost dimension
void check_points(const at::Tensor& self, size_t bins, const char* message) {
  TORCH_CHECK(self.dim() >= 2, "torch.histogramdd: input tensor should have at least 2 dimensions");
  TORCH_CHECK(static_cast<int64_t>(bins) == self.size(-1), message);
  TORCH_CHECK_NOT_IMPLEMENTED(
      self.scalar_type() == c10::kFloat || self.scalar_type() == c10::kDouble,
      "\"histogramdd\" not implemented for '",
      self.scalar_type(),
      "'");
}

void check_weight(const at::Tensor& self, const at::Tensor& weight) {
  if (!weight.defined()) {
    return;
  }
  TORCH_CHECK(
      weight.scalar_type() == self.scalar_type(),
      "torch.histogramdd: if weight tensor is provided, input tensor and weight tensor should have the same dtype, but "
      "got input(",
      self.dtype(),
      "), and weight(",
      weight.dtype(),
      ")");
  TORCH_CHECK(
      weight.sizes() == self.sizes().slice(0, self.dim() - 1),
      "torch.histogramdd: if weight tensor is provided it should have the same shape as the input tensor excluding its "
      "innermost dimension, but got input with shape ",
      self.sizes(),
      " and weight with shape ",
      weight.sizes());
}

std::vector<at::Tensor> bin_edges(
    const at::Tensor& self,
    c10::IntArrayRef bins,
    std::optional<c10::ArrayRef<double>> range) {
  check_points(
      self, bins.size(), "histogramdd: The size of bins must be equal to the innermost dimension of the input.");
  TORCH_CHECK(
      !range || range->size() == 2 * bins.size(),
      "torch.histogramdd: for a ",
      bins.size(),
      "-dimensional histogram range should have ",
      2 * bins.size(),
      " elements, but got ",
      range ? range->size() : 0);
  std::vector<at::Tensor> edges;
  for (size_t dim = 0; dim < bins.size(); ++dim) {
    TORCH_CHECK(bins[dim] > 0, "torch.histogram(): bins must be > 0, but got ", bins[dim], " for dimension ", dim);
    TORCH_CHECK(
        !range || (*range)[2 * dim] <= (*range)[2 * dim + 1],
        "torch.histogramdd: min should not exceed max for dimension ",
        dim);
    edges.push_back(empty({bins[dim] + 1}, self.scalar_type()));
  }
  return edges;
}

at::Tensor histogram_of_points(
    const at::Tensor& self,
    c10::IntArrayRef bins,
    std::optional<c10::ArrayRef<double>> range,
    const OptTensor& weight) {
  bin_edges(self, bins, range);
  check_weight(self, value(weight));
  return empty(bins, self.scalar_type());
}

at::Tensor histogram_of_points_between(const at::Tensor& self, at::TensorList bins, const OptTensor& weight) {
  check_points(self, bins.size(), "torch.histogramdd: expected one sequence of bin edges for each dimension");
  std::vector<int64_t> sizes;
  for (const at::Tensor& edges : bins) {
    TORCH_CHECK(
        edges.scalar_type() == self.scalar_type(),
        "torch.histogramdd: input tensor and bins tensors should have the same dtype");
    TORCH_CHECK(edges.dim() == 1, "torch.histogramdd: bins tensor should have one dimension");
    TORCH_CHECK(edges.numel() > 0, "torch.histogramdd: bins tensor should have at least 1 element");
    sizes.push_back(edges.numel() - 1);
  }
  check_weight(self, value(weight));
  return empty(sizes, self.scalar_type());
}

at::Tensor taken(const at::Tensor& self, const at::Tensor& index) {
  TORCH_CHECK(
      index.scalar_type() == c10::kLong, "take(): Expected a long tensor for index, but got ", index.scalar_type());
  TORCH_CHECK_INDEX(self.numel() > 0 || index.numel() == 0, "take(): tried to take from an empty tensor");
  return empty(index.sizes(), self.scalar_type());
}

at::Tensor nonzero_static(const at::Tensor& self, int64_t size) {
  TORCH_CHECK(size >= 0, "nonzero_static: 'size' must be an non-negative integer");
  return empty({size, self.dim()}, c10::kLong);
}

at::Tensor repeat_interleave(const at::Tensor& repeats, std::optional<int64_t> output_size) {
  TORCH_CHECK(repeats.dim() == 1, "repeat_interleave only accept 1D vector as repeat");
  TORCH_CHECK(
      repeats.scalar_type() == c10::kLong || repeats.scalar_type() == c10::kInt,
      "repeats has to be Long or Int tensor");
  if (!output_size && repeats.size(0) > 0) {
    raise(
        ErrorKind::kDynamicOutputShape,
        "aten::repeat_interleave.Tensor",
        "the size of the result is the sum of the repeats, and those are not known. Pass output_size.");
  }
  return empty({output_size.value_or(0)}, repeats.scalar_type());
}

at::Tensor tril_indices(int64_t row, int64_t col, int64_t offset, std::optional<at::ScalarType> dtype) {
  at::native::check_args(row, col, std::nullopt);
  return empty({2, at::native::get_tril_size(row, col, offset)}, dtype.value_or(c10::kLong));
}

at::Tensor triu_indices(int64_t row, int64_t col, int64_t offset, std::optional<at::ScalarType> dtype) {
  at::native::check_args(row, col, std::nullopt);
  return empty({2, row * col - at::native::get_tril_size(row, col, offset - 1)}, dtype.value_or(c10::kLong));
}

at::Tensor unfold_backward(const at::Tensor& grad, c10::IntArrayRef input_sizes) {
  return empty(input_sizes, grad.scalar_type());
}

}  // namespace

KernelList searching_kernels() {
  namespace ops = at::_ops;
  return {
      kernel<ops::searchsorted_Tensor, &places_in>(),
      kernel<ops::searchsorted_Scalar, &place_in>(),
      out_form<ops::searchsorted_Tensor_out, ops::searchsorted_Tensor>(OutDtype::kSame),
      out_form<ops::searchsorted_Scalar_out, ops::searchsorted_Scalar>(OutDtype::kSame),
      kernel<ops::bucketize_Tensor, &bucketize>(),
      kernel<ops::bucketize_Scalar, &bucketize_scalar>(),
      out_form<ops::bucketize_Tensor_out, ops::bucketize_Tensor>(OutDtype::kSame),
      kernel<ops::histc, &histc>(),
      out_form<ops::histc_out, ops::histc>(OutDtype::kSame),
      kernel<ops::histogram_bin_ct, &histogram>(),
      out_form<ops::histogram_bin_ct_out, ops::histogram_bin_ct>(OutDtype::kSame),
      kernel<ops::histogram_bins_tensor, &histogram_between>(),
      out_form<ops::histogram_bins_tensor_out, ops::histogram_bins_tensor>(OutDtype::kSame),
      kernel<ops::_histogramdd_bin_edges, &bin_edges>(),
      kernel<ops::_histogramdd_from_bin_cts, &histogram_of_points>(),
      kernel<ops::_histogramdd_from_bin_tensors, &histogram_of_points_between>(),
      kernel<ops::take, &taken>(),
      out_form<ops::take_out, ops::take>({&write_contiguous, /*separate=*/true}),
      out_form<ops::index_select_out, ops::index_select>({&write_contiguous, /*separate=*/true}),
      kernel<ops::nonzero_static, &nonzero_static>(),
      out_form<ops::nonzero_static_out, ops::nonzero_static>(OutDtype::kSame),
      kernel<ops::repeat_interleave_Tensor, &repeat_interleave>(),
      kernel<ops::tril_indices, &tril_indices>(),
      kernel<ops::triu_indices, &triu_indices>(),
      kernel<ops::unfold_backward, &unfold_backward>(),
  };
}

}  // namespace torchfake
