// Rules that check what real operators refuse and their meta kernels accept. They compute no results.
#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/native/LinearAlgebraUtils.h>

#include <torchfake/core/compat.h>
#include <torchfake/core/plain_cpu.h>
#include <torchfake/rules/rules.h>
#include <torchfake/values/known_values.h>

#include <algorithm>
#include <limits>

namespace torchfake {

namespace {

// For the in-place form: refuses a tensor whose elements share memory.
void check_written_once(const Call& call) {
  if (call.traits.args[0].is_written) {
    at::assert_no_internal_overlap(call.arg(0).toTensor());
  }
}

RuleResult written_once(Call& call, const ModePtr& /*mode*/) {
  check_written_once(call);
  return RuleResult::kContinue;
}

// gelu(self, approximate)
RuleResult gelu(Call& call, const ModePtr& /*mode*/) {
  const std::string_view approximate = call.arg(1).toStringView();
  TORCH_CHECK(approximate == "none" || approximate == "tanh", "approximate argument must be either none or tanh.");
  return RuleResult::kContinue;
}

// addr(self, vec1, vec2)
RuleResult addr(Call& call, const ModePtr& /*mode*/) {
  const int64_t dims = call.arg(0).toTensor().dim();
  TORCH_CHECK(!call.traits.args[0].is_written || dims == 2, "2D tensor expected, got ", dims, "D tensor for input");
  return RuleResult::kContinue;
}

// addmm(self, mat1, mat2): `self` is expanded to the product's sizes.
RuleResult addmm(Call& call, const ModePtr& /*mode*/) {
  check_written_once(call);
  const at::Tensor self = call.arg(0).toTensor();
  const at::Tensor mat1 = call.arg(1).toTensor();
  const at::Tensor mat2 = call.arg(2).toTensor();
  if (mat1.dim() == 2 && mat2.dim() == 2) {
    TORCH_CHECK(
        self.dim() <= 2,
        "expand(",
        self.sizes(),
        ", size=",
        c10::IntArrayRef({mat1.size(0), mat2.size(1)}),
        "): the number of sizes provided (2) must be greater or equal to the number of dimensions in the tensor (",
        self.dim(),
        ")");
    at::inferExpandGeometry(self.sizes(), self.strides(), {mat1.size(0), mat2.size(1)});
  }
  return RuleResult::kContinue;
}

// mm(self, mat2), also for empty matrices
RuleResult mm(Call& call, const ModePtr& /*mode*/) {
  const at::Tensor self = call.arg(0).toTensor();
  const at::Tensor mat2 = call.arg(1).toTensor();
  TORCH_CHECK(
      self.dtype() == mat2.dtype(),
      "expected m1 and m2 to have the same dtype, but got: ",
      self.dtype(),
      " != ",
      mat2.dtype());
  return RuleResult::kContinue;
}

// as_strided_copy(self, size, stride, storage_offset), as_strided_scatter(self, src, size, stride, storage_offset)
template <size_t kSize>
RuleResult within_storage(Call& call, const ModePtr& /*mode*/) {
  const at::Tensor self = call.arg(0).toTensor();
  // A tensor with internal overlap is copied before it is written to.
  const bool copied = kSize == 2 && at::has_internal_overlap(self) == at::MemOverlap::Yes;
  (copied ? self.clone() : self)
      .as_strided(
          call.arg(kSize).toIntVector(), call.arg(kSize + 1).toIntVector(), call.arg(kSize + 2).toOptional<int64_t>());
  return RuleResult::kContinue;
}

// The CPU checks that there is something to select from.
void check_selectable(const at::Tensor& self, int64_t dim, const at::Tensor& index) {
  const bool looks = self.is_cpu() && self.dim() > 1 && self.numel() == 0 && index.numel() > 0;
  TORCH_CHECK(!looks || self.size(dim) > 0, "index_select(): self indexing axis dim should be positive");
}

// index_select(self, dim, index)
RuleResult index_select(Call& call, const ModePtr& /*mode*/) {
  const at::Tensor self = call.arg(0).toTensor();
  const int64_t dim = call.arg(1).toInt();
  check_selectable(self, dim, call.arg(2).toTensor());
  return RuleResult::kContinue;
}

// A GPU reads and writes through a view expanded along the dimension, which fails if that dimension is empty.
void check_addressable(const at::Tensor& self, int64_t dim, const at::Tensor& index) {
  const bool nothing = self.is_cuda() && self.dim() > 0 && index.numel() > 0 && self.size(dim) == 0;
  TORCH_CHECK(!nothing, "indices into dimension ", dim, " of self, which has size 0, are out of bounds");
}

// gather(self, dim, index), scatter(self, dim, index, ...)
RuleResult through_index(Call& call, const ModePtr& /*mode*/) {
  check_determinism(call);
  const at::Tensor self = call.arg(0).toTensor();
  check_addressable(self, c10::maybe_wrap_dim(call.arg(1).toInt(), self.dim()), call.arg(2).toTensor());
  return RuleResult::kContinue;
}

// embedding(weight, indices), which selects rows
RuleResult embedding(Call& call, const ModePtr& /*mode*/) {
  check_selectable(call.arg(0).toTensor(), 0, call.arg(1).toTensor());
  check_addressable(call.arg(0).toTensor(), 0, call.arg(1).toTensor());
  return RuleResult::kContinue;
}

// renorm(self, p, dim, maxnorm)
RuleResult renorm(Call& call, const ModePtr& /*mode*/) {
  check_written_once(call);
  at::native::checkFloatingOrComplex(call.arg(0).toTensor(), "linalg.vector_norm");
  return RuleResult::kContinue;
}

using OptSizes = std::optional<std::vector<int64_t>>;

// The sizes of each dimension's index, unset for dimensions without one. Returns nothing if there is a mask, whose
// values determine the sizes. An empty mask selects nothing and counts as an index for each of its dimensions.
std::optional<std::vector<OptSizes>> index_sizes(const c10::List<std::optional<at::Tensor>>& indices) {
  std::vector<OptSizes> found;
  for (const std::optional<at::Tensor> index : indices) {
    if (!index || !index->defined()) {
      found.emplace_back();
      continue;
    }
    const c10::ScalarType dtype = index->scalar_type();
    TORCH_CHECK_INDEX(
        dtype == c10::kLong || dtype == c10::kInt || dtype == c10::kByte || dtype == c10::kBool,
        "tensors used as indices must be long, int, byte or bool tensors");
    if (is_mask(dtype) && index->numel() > 0) {
      return std::nullopt;
    }
    if (is_mask(dtype)) {
      found.insert(found.end(), index->dim(), std::vector<int64_t>{0});
    } else {
      found.emplace_back(index->sizes().vec());
    }
  }
  return found;
}

// The sizes of self[indices], unless they depend on values.
OptSizes indexed_sizes(const at::Tensor& self, const c10::List<std::optional<at::Tensor>>& tensors) {
  const std::optional<std::vector<OptSizes>> found = index_sizes(tensors);
  if (!found) {
    return std::nullopt;
  }
  const std::vector<OptSizes>& indices = *found;
  std::vector<int64_t> broadcast;
  size_t first = indices.size();
  size_t last = 0;
  size_t given = 0;
  for (size_t i = 0; i < indices.size(); ++i) {
    const OptSizes& given_index = indices[i];
    if (!given_index) {
      continue;
    }
    const c10::IntArrayRef index = *given_index;
    TORCH_CHECK_INDEX(
        i >= static_cast<size_t>(self.dim()) || self.size(static_cast<int64_t>(i)) > 0 ||
            c10::multiply_integers(index) == 0,
        "index is out of bounds for dimension with size 0");
    TORCH_CHECK_INDEX(
        at::are_expandable(broadcast, index),
        "shape mismatch: indexing tensors could not be broadcast together with shapes ",
        c10::IntArrayRef(broadcast),
        ", ",
        index);
    broadcast = at::infer_size(broadcast, index);
    first = std::min(first, i);
    last = i;
    ++given;
  }
  if (given == 0 || indices.size() > static_cast<size_t>(self.dim())) {
    return std::nullopt;
  }
  const bool adjacent = last - first + 1 == given;
  std::vector<int64_t> sizes;
  for (size_t dim = 0; dim < static_cast<size_t>(self.dim()); ++dim) {
    const bool is_indexed = dim < indices.size() && indices[dim];
    if (adjacent && dim == first) {
      sizes.insert(sizes.end(), broadcast.begin(), broadcast.end());
    }
    if (!is_indexed) {
      sizes.push_back(self.size(static_cast<int64_t>(dim)));
    }
  }
  if (!adjacent) {
    sizes.insert(sizes.begin(), broadcast.begin(), broadcast.end());
  }
  return sizes;
}

void check_values(
    const at::Tensor& self,
    const c10::List<std::optional<at::Tensor>>& indices,
    c10::IntArrayRef values) {
  const OptSizes sizes = indexed_sizes(self, indices);
  TORCH_CHECK(
      !sizes || at::is_expandable_to(values, *sizes),
      "shape mismatch: value tensor of shape ",
      values,
      " cannot be broadcast to indexing result of shape ",
      c10::IntArrayRef(*sizes));
}

// index_put(self, indices, values, accumulate)
RuleResult index_put(Call& call, const ModePtr& /*mode*/) {
  const at::Tensor self = call.arg(0).toTensor();
  if (self.is_cuda() && call.arg(3).toBool()) {
    check_written_once(call);
  }
  check_values(self, call.arg(1).toOptionalTensorList(), call.arg(2).toTensor().sizes());
  return RuleResult::kContinue;
}

// _unsafe_masked_index_put_accumulate(self, mask, indices, values)
RuleResult masked_index_put(Call& call, const ModePtr& /*mode*/) {
  const at::Tensor self = call.arg(0).toTensor();
  if (self.numel() > 0) {
    const auto values = at::infer_size(call.arg(3).toTensor().sizes(), call.arg(1).toTensor().sizes());
    check_values(self, call.arg(2).toOptionalTensorList(), values);
  }
  return RuleResult::kContinue;
}

// scatter_reduce(self, dim, index, src, reduce)
RuleResult scatter_reduce(Call& call, const ModePtr& mode) {
  through_index(call, mode);
  const at::Tensor self = call.arg(0).toTensor();
  const std::string_view reduce = call.arg(4).toStringView();
  TORCH_CHECK_NOT_IMPLEMENTED(
      !self.is_cuda() || self.scalar_type() != c10::kBool || reduce == "sum" || reduce == "mean",
      "\"cuda_scatter_gather_base_kernel_func\" not implemented for 'Bool'");
  return RuleResult::kContinue;
}

// addmv(self, mat, vec)
RuleResult addmv(Call& call, const ModePtr& /*mode*/) {
  const at::Tensor self = call.arg(0).toTensor();
  TORCH_CHECK(
      !call.traits.args[0].is_written || !self.is_cuda() || self.dim() != 1 || self.size(0) < 2 || self.stride(0) > 0,
      "at::cuda::blas::gemv argument incy must be positive and less than ",
      std::numeric_limits<int>::max());
  return RuleResult::kContinue;
}

// roll(self, shifts, dims)
RuleResult roll(Call& call, const ModePtr& /*mode*/) {
  const at::Tensor self = call.arg(0).toTensor();
  const std::vector<int64_t> dims = call.arg(2).toIntVector();
  TORCH_CHECK_INDEX(
      !self.is_cuda() || self.dim() > 0 || dims.empty(),
      "Dimension specified as ",
      dims.empty() ? 0 : dims[0],
      " but tensor has no dimensions");
  return RuleResult::kContinue;
}

// _foreach_copy(self, src): the kernel reads as many tensors of the first list as there are in the second.
RuleResult foreach_copy(Call& call, const ModePtr& /*mode*/) {
  const size_t copied = call.arg(0).toTensorVector().size();
  const size_t sources = call.arg(1).toTensorVector().size();
  TORCH_CHECK(sources <= copied, "Tensor lists must have the same number of tensors, got ", copied, " and ", sources);
  return RuleResult::kContinue;
}

// The gradient of a softmax has the dtype of its output.
RuleResult softmax_backward(Call& call, const ModePtr& /*mode*/) {
  const c10::ScalarType gradient = call.arg(0).toTensor().scalar_type();
  const c10::ScalarType output = call.arg(1).toTensor().scalar_type();
  TORCH_CHECK_NOT_IMPLEMENTED(
      c10::isFloatingType(gradient), "\"softmax_backward_kernel_impl\" not implemented for '", gradient, "'");
  TORCH_CHECK(gradient == output, "expected scalar type ", gradient, " but found ", output);
  return RuleResult::kContinue;
}

// Complex numbers have no order. Tensors with nothing to compare are not checked.
RuleResult ordered(Call& call, const ModePtr& /*mode*/) {
  const at::Tensor self = call.arg(0).toTensor();
  TORCH_CHECK_NOT_IMPLEMENTED(
      !self.is_complex() || self.dim() == 0 || self.numel() == 0,
      '"',
      call.op_name(),
      "\" not implemented for '",
      self.scalar_type(),
      "'");
  return RuleResult::kContinue;
}

// aminmax(self, *, dim, keepdim) of complex numbers. A single number is its own minimum along a dimension and needs no
// kernel.
RuleResult aminmax(Call& call, const ModePtr& mode) {
  const at::Tensor self = call.arg(0).toTensor();
  if (!self.is_complex()) {
    return RuleResult::kContinue;
  }
  TORCH_CHECK_TYPE(!compat::kAminmaxChecksDtypeFirst, "aminmax not implemented for ", self.scalar_type());
  const bool needs_no_kernel = self.dim() == 0 && !call.arg(1).isNone();
  TORCH_CHECK(!needs_no_kernel, "aminmax not implemented for ", self.scalar_type());
  TORCH_CHECK_NOT_IMPLEMENTED(self.dim() > 0, "\"aminmax_cpu\" not implemented for '", self.scalar_type(), "'");
  return ordered(call, mode);
}

// Visits the values of the second argument if they are known and the first argument is on the CPU, which refuses
// invalid ones; a GPU reports them later.
template <typename Visit>
void visit_known_places(const Call& call, int64_t limit, const Visit& visit) {
  const FakeTensorImpl* from = as_fake(call.arg(0).toTensor());
  const FakeTensorImpl* wanted = as_fake(call.arg(1).toTensor());
  const bool on_cpu = from != nullptr && from->claimed_device().is_cpu();
  const std::optional<at::Tensor> known = on_cpu && wanted != nullptr ? known_tensor(*wanted, limit) : std::nullopt;
  if (!known || known->numel() == 0) {
    return;
  }
  PlainCpu plain;
  const at::Tensor places = (known->scalar_type() == c10::kLong ? *known : known->to(c10::kLong)).contiguous();
  const int64_t* place = places.const_data_ptr<int64_t>();
  std::for_each(place, place + places.numel(), visit);
}

}  // namespace

void check_embedding_rows(const Call& call, int64_t limit) {
  const at::Tensor table = call.arg(0).toTensor();
  if (table.dim() == 2 && table.size(0) > 0) {  // an embedding without rows is refused by the kernel
    visit_known_places(call, limit, [rows = table.size(0)](int64_t row) {
      TORCH_CHECK_INDEX(row >= 0 && row < rows, "index out of range in self");
    });
  }
}

void check_classes(const Call& call, int64_t limit) {
  const at::Tensor scores = call.arg(0).toTensor();
  if (scores.dim() == 0) {
    return;  // refused by the kernel
  }
  const int64_t count = scores.size(scores.dim() == 1 ? 0 : 1);
  const int64_t ignored = call.arg(4).toInt();
  visit_known_places(call, limit, [&](int64_t target) {
    TORCH_CHECK_INDEX(target == ignored || (target >= 0 && target < count), "Target ", target, " is out of bounds.");
  });
}

RuleList argument_checks() {
  return {
      {"_unsafe_masked_index_put_accumulate", &masked_index_put},
      {"aminmax", &aminmax},
      {"cummax cummin", &ordered},
      {"_softmax_backward_data _log_softmax_backward_data", &softmax_backward},
      {"scatter_reduce scatter_reduce_", &scatter_reduce},
      {"gather scatter scatter_ scatter_add scatter_add_", &through_index},
      {"addmv addmv_", &addmv},
      {"roll", &roll},
      {"gelu gelu_", &gelu},
      {"mm", &mm},
      {"_foreach_copy", &foreach_copy},
      {"as_strided_copy", &within_storage<1>},
      {"as_strided_scatter", &within_storage<2>},
      {"addbmm addbmm_ cumsum cumsum_ cumprod cumprod_", &written_once},
      {"addr addr_", &addr},
      {"addmm addmm_", &addmm},
      {"index_select", &index_select},
      {"embedding", &embedding},
      {"renorm renorm_", &renorm},
      {"index_put index_put_ _index_put_impl _index_put_impl_ _unsafe_index_put", &index_put},
  };
}

}  // namespace torchfake
