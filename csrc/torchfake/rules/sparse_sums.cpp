// Sums of sparse tensors: the stored elements of both.
#include <ATen/ops/_coalesce.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/result_type.h>

#include <torchfake/core/errors.h>
#include <torchfake/core/layout_fake.h>
#include <torchfake/rules/sparse.h>
#include <torchfake/values/known_values.h>
#include <torchfake/values/stand_in_answers.h>

namespace torchfake {

namespace {

const at::SparseTensorImpl& coo(const at::Tensor& tensor) {
  return *static_cast<const at::SparseTensorImpl*>(tensor.unsafeGetTensorImpl());
}

bool is_known_in_full(const at::Tensor& member) {
  return known_tensor(*as_fake(member), std::numeric_limits<int64_t>::max()).has_value();
}

}  // namespace

// A GPU concatenates the stored elements, and coalesces the result if it stores more elements than it has numbers. The
// CPU merges equal neighbours, as many as the values of the indices decide.
bool add_stored_elements(Call& call, c10::Device device, const ModePtr& mode, bool in_place) {
  const at::Tensor self = call.arg(0).toTensor();
  const at::Tensor other = call.arg(1).toTensor();
  const at::SparseTensorImpl& left = coo(self);
  const at::SparseTensorImpl& right = coo(other);
  const bool appends = self.sizes() == other.sizes() && left.sparse_dim() == right.sparse_dim() && left.nnz() > 0 &&
      right.nnz() > 0 && (!in_place || at::result_type(self, other) == self.scalar_type());
  if (!appends) {
    return false;
  }
  if (!device.is_cuda()) {
    const bool is_known = is_known_in_full(left.indices()) && is_known_in_full(right.indices());
    if (is_known || left.indices().is_same(right.indices())) {
      return false;
    }
    if (!stands_in(mode, call.op_name(), "all elements differ")) {
      raise(
          ErrorKind::kDynamicOutputShape,
          call.op_name(),
          "how many elements the sum stores depends on which indices are equal, and fake tensors hold no values. A GPU "
          "stores the elements of both.");
    }
  }
  const FakeMode in_mode(mode);
  const c10::ScalarType dtype = at::result_type(self, other);
  const at::Tensor sum = make_sparse_fake(
      left.sparse_dim(),
      left.dense_dim(),
      self.sizes(),
      at::cat({left.indices(), right.indices()}, 1),
      at::cat({left.values().to(dtype), right.values().to(dtype)}),
      /*coalesced=*/!device.is_cuda() && left.coalesced() && right.coalesced(),
      device,
      mode);
  const at::Tensor result = device.is_cuda() && coo(sum).nnz() > sum.numel() ? at::_coalesce(sum) : sum;
  if (in_place) {
    set_members(self, result, members_of(result));
  }
  torch::jit::drop(*call.stack, call.num_args());
  call.stack->emplace_back(in_place ? self : result);
  return true;
}

}  // namespace torchfake
