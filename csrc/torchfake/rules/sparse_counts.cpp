// Sparse tensors whose number of stored elements depends on data: a symbol in a mode with a shape environment, and refused
// elsewhere.
#include <ATen/ops/_coalesce.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <torchfake/core/errors.h>
#include <torchfake/core/layout_fake.h>
#include <torchfake/core/plain_cpu.h>
#include <torchfake/core/to_fake.h>
#include <torchfake/dispatch/stored_counts.h>
#include <torchfake/rules/sparse_counts.h>
#include <torchfake/values/known_values.h>
#include <torchfake/values/stand_in_answers.h>

#include <algorithm>
#include <limits>

namespace torchfake {

namespace {

void answer(const Call& call, at::Tensor result) {
  torch::jit::drop(*call.stack, call.num_args());
  call.stack->emplace_back(std::move(result));
}

at::Tensor tensor(const Call& call, size_t arg) {
  return call.arg(arg).toTensor();
}

// The indices that remain after coalescing, computed by the real operator on a tensor with the same indices and number
// values.
at::Tensor coalesced_indices(const at::SparseTensorImpl& self, const at::Tensor& known) {
  PlainCpu no_engine;
  const at::Tensor counts = at::zeros({self.nnz()}, at::TensorOptions().dtype(c10::kByte));
  const at::Tensor places =
      at::_sparse_coo_tensor_unsafe(known, counts, self.sizes().slice(0, self.sparse_dim()), c10::kByte);
  return at::_coalesce(places)._indices();
}

// Throws what _spdiags throws. Its kernel is not run on examples: it writes out of bounds if diagonals are longer than the
// rows of a compressed result.
void check_spdiags(const Call& call, c10::Layout layout) {
  const at::Tensor diagonals = tensor(call, 0);
  const at::Tensor offsets = tensor(call, 1);
  TORCH_CHECK(diagonals.dim() == 1 || diagonals.dim() == 2, "Diagonals must be vector or matrix");
  TORCH_CHECK(call.arg(2).toDimVector().size() == 2, "Output shape must be 2d");
  TORCH_CHECK(offsets.dim() <= 1, "Offsets must be scalar or vector");
  const int64_t count = diagonals.dim() == 1 ? 1 : diagonals.size(0);
  TORCH_CHECK(
      count == offsets.numel(),
      "Number of diagonals (",
      count,
      ") does not match the number of offsets (",
      offsets.numel(),
      ")");
  TORCH_CHECK(
      layout == c10::kSparse || layout == c10::kSparseCsr || layout == c10::kSparseCsc,
      "Only output layouts (Sparse, SparseCsc, SparseCsr) are supported, got ",
      layout);
  TORCH_CHECK(
      offsets.scalar_type() == c10::kLong, "Offset Tensor must have dtype Long but got ", offsets.scalar_type());
}

}  // namespace

at::Tensor coo_of_symbolic(
    const Call& call,
    const at::Tensor& indices,
    const at::Tensor& values,
    c10::Device device,
    const ModePtr& mode) {
  const int64_t sparse_dim = call.arg(0).toInt();
  const int64_t dense_dim = call.arg(1).toInt();
  const auto sizes = call.arg(2).toDimVector();
  TORCH_CHECK(
      sparse_dim + dense_dim == static_cast<int64_t>(sizes.size()),
      "number of dimensions must be sparse_dim (",
      sparse_dim,
      ") + dense_dim (",
      dense_dim,
      "), but got ",
      sizes.size());
  TORCH_CHECK(indices.dim() == 2, "indices must be sparse_dim x nnz, but got: ", indices.sym_sizes());
  TORCH_CHECK(
      indices.sym_size(0).sym_eq(sparse_dim).expect_true(__FILE__, __LINE__),
      "indices has incompatible first dimension, expected ",
      sparse_dim,
      ", got ",
      indices.sym_size(0));
  TORCH_CHECK(
      values.dim() == 1 + dense_dim && indices.sym_size(1).sym_eq(values.sym_size(0)).expect_true(__FILE__, __LINE__),
      "indices and values must have same nnz, but got nnz from indices: ",
      indices.sym_size(1),
      ", nnz from values: ",
      values.sym_size(0));
  return make_sparse_fake(
      sparse_dim,
      dense_dim,
      sizes,
      indices.device() == device ? indices : indices.to(device),
      values.device() == device ? values : values.to(device),
      call.arg(9).toOptional<bool>().value_or(false),
      device,
      mode);
}

bool coalesce_sparse(Call& call, c10::Device device, const ModePtr& mode) {
  const at::Tensor self = tensor(call, 0);
  const auto& impl = *static_cast<const at::SparseTensorImpl*>(self.unsafeGetTensorImpl());
  const bool is_counted = !has_symbolic_count(self);
  const bool keeps_all = impl.coalesced() || (is_counted && impl.nnz() < 2);
  const std::optional<at::Tensor> known = keeps_all || !is_counted
      ? std::nullopt
      : known_tensor(*as_fake(impl.indices()), std::numeric_limits<int64_t>::max());
  std::vector<at::Tensor> members;
  if (known) {
    const at::Tensor indices = coalesced_indices(impl, *known);
    c10::SmallVector<int64_t, 6> sizes(impl.values().sizes());
    sizes[0] = indices.size(1);
    at::Tensor fake_indices = to_fake(indices, mode, device);
    set_known_bytes(
        fake_indices.storage().unsafeGetStorageImpl(), device, indices.storage().getWeakStorageImpl().lock());
    const FakeMode in_mode(mode);
    at::Tensor values = at::empty(sizes, at::TensorOptions().dtype(self.scalar_type()).device(device));
    members = {std::move(fake_indices), std::move(values)};
  } else if (keeps_all) {
    for (const at::Tensor& member : members_of(self)) {
      members.push_back(at::clone(member));
    }
  } else if (is_counted && stands_in(mode, call.op_name(), "all elements differ")) {
    const int64_t places = c10::multiply_integers(self.sizes().slice(0, self.sparse_dim()));
    const int64_t kept = std::min(impl.nnz(), places);
    const FakeMode in_mode(mode);
    members = {at::clone(impl.indices().narrow(1, 0, kept)), at::clone(impl.values().narrow(0, 0, kept))};
  } else if (counts_may_be_symbols(*mode)) {
    answer(call, with_unknown_count(self, /*coalesced=*/true, device, mode));
    return true;
  } else {
    raise(
        ErrorKind::kDynamicOutputShape,
        call.op_name(),
        "how many elements remain depends on which indices are equal, and fake tensors hold no values. The indices are "
        "known only where they follow from small constants; or let real values travel along "
        "(propagate_real_tensors).");
  }
  answer(
      call,
      make_sparse_fake(
          impl.sparse_dim(), impl.dense_dim(), self.sizes(), members[0], members[1], /*coalesced=*/true, device, mode));
  return true;
}

// _spdiags(diagonals, offsets, shape, layout): the offsets determine the number of stored elements.
bool spdiags(Call& call, c10::Device device, const ModePtr& mode) {
  const at::Tensor offsets = tensor(call, 1);
  TORCH_CHECK(device.is_cpu() && offsets.is_cpu(), "_spdiags is only implemented for CPU tensors");
  const FakeTensorImpl* fake = as_fake(offsets);
  const auto shape = call.arg(2).toDimVector();
  const bool is_empty = std::find(shape.begin(), shape.end(), 0) != shape.end();
  if (fake == nullptr || is_empty || offsets.numel() == 0 || known_tensor(*fake, std::numeric_limits<int64_t>::max())) {
    return false;
  }
  if (!counts_may_be_symbols(*mode)) {
    raise(
        ErrorKind::kDynamicOutputShape,
        call.op_name(),
        "the number of stored elements depends on the offsets, and this fake tensor holds no values. Make the offsets "
        "from constants, or use a mode with a ShapeEnv, in which the number is a symbol.");
  }
  const c10::Layout layout = call.arg(3).isNone() ? c10::kSparse : call.arg(3).toLayout();
  check_spdiags(call, layout);
  at::Tensor like;
  {
    PlainCpu no_engine;
    like = at::zeros(shape, at::TensorOptions().dtype(tensor(call, 0).scalar_type()).layout(layout));
  }
  const int64_t length = tensor(call, 0).size(-1);
  const int64_t below = std::min(shape[0], length);
  const int64_t above = std::min(shape[1], length) - 1;
  const int64_t most = offsets.numel() * std::max(below, above);
  answer(call, with_unknown_count(like, /*coalesced=*/false, device, mode, most));
  return true;
}

}  // namespace torchfake
