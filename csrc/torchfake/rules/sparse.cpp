// Sparse tensors of any size: constructors, conversions, products, and operators on the indices of stored elements.
#include <torchfake/rules/sparse.h>

#include <ATen/ExpandUtils.h>
#include <ATen/ops/_embedding_bag_sparse_backward.h>
#include <ATen/ops/_sparse_compressed_tensor_unsafe.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_and_tensors.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/result_type.h>

#include <torchfake/core/errors.h>
#include <torchfake/core/layout_fake.h>
#include <torchfake/core/plain_cpu.h>
#include <torchfake/core/to_fake.h>
#include <torchfake/dispatch/layout_call.h>
#include <torchfake/dispatch/stored_counts.h>
#include <torchfake/rules/operator_table.h>
#include <torchfake/rules/quantized.h>
#include <torchfake/rules/sparse_counts.h>
#include <torchfake/values/known_values.h>

#include <mutex>
#include <unordered_map>

namespace torchfake {

namespace {

void answer(const Call& call, c10::IValue value) {
  torch::jit::drop(*call.stack, call.num_args());
  call.stack->push_back(std::move(value));
}

at::Tensor tensor(const Call& call, size_t arg) {
  return call.arg(arg).toTensor();
}

bool is_coo(const at::Tensor& tensor) {
  return tensor.layout() == c10::kSparse;
}

bool is_strided(const at::Tensor& tensor) {
  return tensor.layout() == c10::kStrided;
}

const at::SparseTensorImpl& coo(const at::Tensor& tensor) {
  return *static_cast<const at::SparseTensorImpl*>(tensor.unsafeGetTensorImpl());
}

// A strided fake of this mode with its own storage.
at::Tensor dense(c10::IntArrayRef sizes, c10::ScalarType dtype, c10::Device device, const ModePtr& mode) {
  const FakeMode in_mode(mode);
  return at::empty(sizes, at::TensorOptions().dtype(dtype).device(device));
}

std::vector<at::Tensor> cloned_members(const at::Tensor& sparse) {
  std::vector<at::Tensor> members;
  for (const at::Tensor& member : members_of(sparse)) {
    members.push_back(at::clone(member));
  }
  return members;
}

// ---- Constructors

// _sparse_coo_tensor_with_dims_and_tensors(sparse_dim, dense_dim, size, indices, values, ..., is_coalesced). A plain
// meta tensor made from the same arguments runs PyTorch's checks.
bool coo_of_tensors(Call& call, c10::Device device, const ModePtr& mode) {
  const at::Tensor indices = tensor(call, 3);
  const at::Tensor values = tensor(call, 4);
  if (as_fake(indices) == nullptr || as_fake(values) == nullptr) {
    return false;
  }
  const FakeMode in_mode(mode);
  if (indices.unsafeGetTensorImpl()->has_symbolic_sizes_strides() ||
      values.unsafeGetTensorImpl()->has_symbolic_sizes_strides()) {
    answer(call, coo_of_symbolic(call, indices, values, device, mode));
    return true;
  }
  const at::Tensor placed_indices = indices.device() == device ? indices : indices.to(device);
  const at::Tensor placed_values = values.device() == device ? values : values.to(device);
  at::Tensor like;
  {
    const at::Tensor meta_indices = to_meta(placed_indices);
    const at::Tensor meta_values = to_meta(placed_values);
    PlainCpu no_engine;
    like = at::_sparse_coo_tensor_with_dims_and_tensors(
        call.arg(0).toInt(),
        call.arg(1).toInt(),
        call.arg(2).toDimVector(),
        meta_indices,
        meta_values,
        meta_values.options()
            .layout(c10::kSparse)
            .dtype(call.arg(5).isNone() ? values.scalar_type() : call.arg(5).toScalarType()),
        call.arg(9).toOptional<bool>());
  }
  answer(call, make_layout_fake(like, {placed_indices, placed_values}, device, mode));
  return true;
}

// Constructors of tensors that store no elements, or resemble another tensor: PyTorch's own, on meta.
bool on_meta(Call& call, c10::Device device, const ModePtr& mode) {
  for (size_t i = 0; i < call.num_args(); ++i) {
    c10::IValue& value = call.arg(i);
    if (call.traits.args[i].kind == ArgKind::kDevice && (!value.isNone() || call.tensors().empty())) {
      value = c10::Device(c10::kMeta);
    } else if (call.traits.args[i].kind == ArgKind::kPinMemory) {
      value = c10::IValue();
    } else if (value.isTensor() && is_any_fake(value.toTensor())) {
      value = plain_meta(value.toTensor(), /*may_lack_elements=*/true);
    }
  }
  {
    PlainCpu no_engine;
    call.op.callBoxed(call.stack);
  }
  c10::IValue& result = call.stack->back();
  const at::Tensor made = result.toTensor();
  result = is_sparse_layout(made.layout()) ? wrap_sparse(made, device, mode) : to_fake(made, mode, device);
  return true;
}

bool clone(Call& call, c10::Device device, const ModePtr& mode) {
  const at::Tensor self = tensor(call, 0);
  answer(call, make_layout_fake(self, cloned_members(self), device, mode));
  return true;
}

// detach(self), alias(self): another tensor with the same members.
bool same_members(Call& call, c10::Device device, const ModePtr& mode) {
  const at::Tensor self = tensor(call, 0);
  at::Tensor other = make_layout_fake(self, members_of(self), device, mode);
  if (!self.is_inference() && !other.is_inference()) {
    other.unsafeGetTensorImpl()->set_version_counter(self.unsafeGetTensorImpl()->version_counter());
  }
  answer(call, std::move(other));
  return true;
}

// ---- Conversion to dense, and sums with dense tensors

bool to_dense(Call& call, c10::Device device, const ModePtr& mode) {
  const at::Tensor self = tensor(call, 0);
  TORCH_CHECK(call.arg(1).isNone(), "dtype argument is not supported by sparse_to_dense");
  answer(call, dense(self.sizes(), self.scalar_type(), device, mode));
  return true;
}

// add(dense, sparse), in place or not.
template <bool kInPlace>
bool add(Call& call, c10::Device device, const ModePtr& mode) {
  const at::Tensor self = tensor(call, 0);
  const at::Tensor other = tensor(call, 1);
  if (is_coo(self) && is_coo(other) && !has_symbolic_count(self) && !has_symbolic_count(other)) {
    return add_stored_elements(call, device, mode, kInPlace);
  }
  if (!is_strided(self) || !is_coo(other) || self.sizes() != other.sizes()) {
    return false;
  }
  const c10::ScalarType dtype = at::result_type(self, other);
  if (!kInPlace) {
    answer(call, dense(self.sizes(), dtype, device, mode));
    return true;
  }
  TORCH_CHECK(
      c10::canCast(dtype, self.scalar_type()),
      "Can't convert result type ",
      dtype,
      " to output ",
      self.scalar_type(),
      " in add operation");
  forget_known_bytes(self.storage().unsafeGetStorageImpl());
  answer(call, self);
  return true;
}

// ---- Products of a sparse and a dense matrix

bool is_product(const at::Tensor& left, const at::Tensor& right) {
  return !is_strided(left) && is_strided(right) && left.dim() == 2 && right.dim() == 2 &&
      left.size(1) == right.size(0) && left.scalar_type() == right.scalar_type();
}

bool mm(Call& call, c10::Device device, const ModePtr& mode) {
  const at::Tensor left = tensor(call, 0);
  const at::Tensor right = tensor(call, 1);
  if (!is_product(left, right)) {
    return false;
  }
  answer(call, dense({left.size(0), right.size(1)}, left.scalar_type(), device, mode));
  return true;
}

// addmm(self, mat1, mat2) and _sparse_addmm.
bool addmm(Call& call, c10::Device device, const ModePtr& mode) {
  const at::Tensor self = tensor(call, 0);
  const at::Tensor left = tensor(call, 1);
  const at::Tensor right = tensor(call, 2);
  if (!is_strided(self) || !is_product(left, right) || self.scalar_type() != left.scalar_type()) {
    return false;
  }
  const std::array<int64_t, 2> sizes = {left.size(0), right.size(1)};
  if (!at::is_expandable_to(self.sizes(), sizes)) {
    return false;
  }
  answer(call, dense(sizes, self.scalar_type(), device, mode));
  return true;
}

bool mv(Call& call, c10::Device device, const ModePtr& mode) {
  const at::Tensor left = tensor(call, 0);
  const at::Tensor right = tensor(call, 1);
  if (is_strided(left) || !is_strided(right) || left.dim() != 2 || right.dim() != 1 || left.size(1) != right.size(0) ||
      left.scalar_type() != right.scalar_type()) {
    return false;
  }
  answer(call, dense({left.size(0)}, left.scalar_type(), device, mode));
  return true;
}

// sparse_sampled_addmm(self, mat1, mat2): the result has the sparsity of self.
bool sampled_addmm(Call& call, c10::Device device, const ModePtr& mode) {
  const at::Tensor self = tensor(call, 0);
  const at::Tensor left = tensor(call, 1);
  const at::Tensor right = tensor(call, 2);
  const bool fits = self.layout() == c10::kSparseCsr && self.dim() == 2 && is_strided(left) && is_strided(right) &&
      left.dim() == 2 && right.dim() == 2 && left.size(0) == self.size(0) && right.size(1) == self.size(1) &&
      left.size(1) == right.size(0) && left.scalar_type() == self.scalar_type() &&
      right.scalar_type() == self.scalar_type();
  if (!fits) {
    return false;
  }
  answer(call, make_layout_fake(self, cloned_members(self), device, mode));
  return true;
}

// _sparse_mm_reduce_impl and its backward only have CPU kernels. The backward does not check its indices.
bool require_cpu(Call& call, c10::Device device, const ModePtr& /*mode*/) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      device.is_cpu(), "Could not run '", call.op_name(), "' with arguments from the 'SparseCsrCUDA' backend.");
  return false;
}

// _sparse_mm_reduce_impl_backward(self, grad_out, weight, reduce, arg_out, output_mask)
bool mm_reduce_backward(Call& call, c10::Device device, const ModePtr& mode) {
  require_cpu(call, device, mode);
  const at::Tensor self = tensor(call, 0);
  const at::Tensor weight = tensor(call, 2);
  const c10::List<bool> mask = call.arg(5).toBoolList();
  at::Tensor grad_self;
  at::Tensor grad_weight;
  if (mask.get(0)) {
    grad_self = make_layout_fake(self, cloned_members(self), device, mode);
  }
  if (mask.get(1)) {
    grad_weight = dense(weight.sizes(), weight.scalar_type(), device, mode);
  }
  torch::jit::drop(*call.stack, call.num_args());
  call.stack->emplace_back(std::move(grad_self));
  call.stack->emplace_back(std::move(grad_weight));
  return true;
}

// ---- The indices of stored elements

// sparse_mask(self, mask): the elements of self that a coalesced mask stores.
bool sparse_mask(Call& call, c10::Device device, const ModePtr& mode) {
  const at::Tensor self = tensor(call, 0);
  const at::Tensor mask = tensor(call, 1);
  if (!is_strided(self) || !is_coo(mask) || !coo(mask).coalesced() || self.sizes() != mask.sizes() ||
      coo(mask).nnz() == 0) {
    return false;
  }
  const at::Tensor values = dense(coo(mask).values().sizes(), self.scalar_type(), device, mode);
  answer(
      call,
      make_sparse_fake(
          coo(mask).sparse_dim(),
          coo(mask).dense_dim(),
          mask.sizes(),
          at::clone(coo(mask).indices()),
          values,
          /*coalesced=*/true,
          device,
          mode));
  return true;
}

// _embedding_bag_backward(grad, indices, offsets, offset2bag, bag_size, maximum_indices, num_weights,
// scale_grad_by_freq, mode, sparse, per_sample_weights, padding_idx) with sparse=True: one row for each index.
bool bag_backward(Call& call, c10::Device /*device*/, const ModePtr& mode) {
  const FakeMode in_mode(mode);
  const at::Tensor indices = tensor(call, 1);
  at::Tensor bags = tensor(call, 3);
  if (bags.numel() == 0 && indices.numel() != 0) {
    bags = at::empty_like(indices);  // the CPU's forward pass omits them if it can
  }
  const auto weights = call.arg(10).toOptional<at::Tensor>();
  answer(
      call,
      at::_embedding_bag_sparse_backward(
          tensor(call, 0),
          indices,
          tensor(call, 2),
          bags,
          tensor(call, 4),
          call.arg(6).toInt(),
          call.arg(7).toBool(),
          call.arg(8).toInt(),
          weights.has_value() && weights->defined() ? weights : std::nullopt,
          call.arg(11).toInt()));
  return true;
}

// ---- Operators on the stored values only

// mul and div by a number or a zero-dimensional tensor. Compressed layouts do not support division.
template <bool kDivides>
bool scaled(Call& call, c10::Device device, const ModePtr& mode) {
  const at::Tensor self = tensor(call, 0);
  const bool is_scale =
      call.arg(1).isScalar() || (call.arg(1).isTensor() && is_strided(tensor(call, 1)) && tensor(call, 1).dim() == 0);
  if (is_strided(self) || !is_scale || self.dim() == 0 || (kDivides && !is_coo(self))) {
    return false;
  }
  const at::Tensor values = members_of(self).back();
  const FakeMode in_mode(mode);
  torch::jit::Stack arguments(call.stack->end() - static_cast<ptrdiff_t>(call.num_args()), call.stack->end());
  arguments[0] = values;
  call.op.callBoxed(&arguments);
  const at::Tensor result = arguments.back().toTensor();
  if (result.is_same(values)) {
    answer(call, self);
    return true;
  }
  std::vector<at::Tensor> members = cloned_members(self);
  members.back() = result;
  answer(call, make_layout_fake(self, members, device, mode));
  return true;
}

struct Row {
  const char* names;
  LayoutFacts facts;
};

constexpr Row kRows[] = {
    {"_sparse_coo_tensor_with_dims_and_tensors", {&coo_of_tensors, false}},
    {"_sparse_coo_tensor_with_dims _sparse_compressed_tensor_with_dims empty.memory_format zeros zeros. "
     "sparse_coo_tensor.size zeros_like empty_like",
     {&on_meta, false}},
    {"sparse_compressed_tensor* new_zeros new_empty _to_copy", {nullptr, true}},
    {"clone", {&clone, false}},
    {"detach alias", {&same_members, false}},
    {"_to_dense", {&to_dense, false}},
    {"add.Tensor", {&add<false>, false}},
    {"add_.Tensor", {&add<true>, false}},
    {"mm _sparse_mm", {&mm, false}},
    {"addmm _sparse_addmm", {&addmm, false}},
    {"mv", {&mv, false}},
    {"sparse_sampled_addmm", {&sampled_addmm, false}},
    {"_sparse_mm_reduce_impl", {&require_cpu, false}},
    {"_sparse_mm_reduce_impl_backward", {&mm_reduce_backward, false}},
    {"sparse_mask", {&sparse_mask, false}},
    {"_coalesce", {&coalesce_sparse, false}},
    {"_spdiags", {&spdiags, false}},
    {"_embedding_bag_backward", {&bag_backward, false}},
    {"mul.Tensor mul_.Tensor mul.Scalar mul_.Scalar", {&scaled<false>, false}},
    {"div.Tensor div_.Tensor div.Scalar div_.Scalar", {&scaled<true>, false}},
    // Queries and members.
    {"sparse_dim dense_dim _dimI _dimV _nnz is_coalesced _coalesced_ _indices _values indices values crow_indices "
     "col_indices ccol_indices row_indices",
     {nullptr, true}},
    // New values, unchanged indices: operators that map zero to zero, which PyTorch applies to the stored values.
    {"abs abs_ asin asin_ asinh asinh_ atan atan_ atanh atanh_ ceil ceil_ conj_physical conj_physical_ deg2rad "
     "deg2rad_ erf erf_ erfinv erfinv_ expm1 expm1_ floor floor_ frac frac_ isinf isnan isneginf isposinf log1p log1p_ "
     "nan_to_num nan_to_num_ neg neg_ rad2deg rad2deg_ relu relu_ round round_ sgn sgn_ sign sign_ signbit sin sin_ "
     "sinh "
     "sinh_ sqrt sqrt_ tan tan_ tanh tanh_ trunc trunc_ threshold_backward angle",
     {nullptr, true}},
    {"sum. any. native_norm", {nullptr, true}},
    // The same change of indices for all elements.
    {"transpose transpose_ permute unsqueeze cat zero_ copy_ copy_sparse_to_sparse_ sparse_resize_ "
     "sparse_resize_and_clear_ resize_as_sparse_",
     {nullptr, true}},
    // Through stand-ins only.
    {"_to_sparse _to_sparse_csr _to_sparse_csc _to_sparse_bsr _to_sparse_bsc", {nullptr, false}},
};

// Pointers to an operator's facts stay valid: the table only grows.
const LayoutFacts* find_facts(const c10::OperatorHandle& op) {
  static std::mutex mutex;
  static auto* found = new std::unordered_map<std::string, std::optional<LayoutFacts>>();
  const c10::OperatorName& whole = op.operator_name();
  const std::lock_guard lock(mutex);
  const auto [entry, is_new] = found->emplace(c10::toString(whole), std::nullopt);
  if (is_new) {
    const std::string_view name = whole.name;
    const std::string_view library = name.substr(0, name.find("::"));
    for (const Row& row : kRows) {
      if (names_operator(row.names, library, name.substr(library.size() + 2), whole.overload_name)) {
        entry->second = row.facts;
      }
    }
    for (const QuantizedRow& row : quantized_rules()) {
      if (names_operator(row.names, library, name.substr(library.size() + 2), whole.overload_name)) {
        entry->second = entry->second.value_or(LayoutFacts{});
        entry->second->quantized = row.rule;
        entry->second->makes_quantized = row.makes_quantized;
      }
    }
  }
  return entry->second ? &*entry->second : nullptr;
}

[[maybe_unused]] const bool g_is_set = (set_layout_facts_finder(&find_facts), true);

}  // namespace

}  // namespace torchfake
