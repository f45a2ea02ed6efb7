// Layout calls: sparse results whose number of stored elements only data determines.
#include <torchfake/dispatch/stored_counts.h>

#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>

#include <torchfake/core/layout_fake.h>
#include <torchfake/symbolic/mode_env.h>

#include <algorithm>

namespace torchfake {

namespace {

// How many elements a sparse tensor stores at most, for each element of its batch; nothing if indices may repeat.
std::optional<int64_t> most_stored(const at::Tensor& sparse, const std::vector<at::Tensor>& members, bool coalesced) {
  if (sparse.layout() == c10::kSparse) {
    const auto& impl = *static_cast<const at::SparseTensorImpl*>(sparse.unsafeGetTensorImpl());
    return coalesced ? std::optional(c10::multiply_integers(sparse.sizes().slice(0, impl.sparse_dim()))) : std::nullopt;
  }
  const int64_t batch = members[0].dim() - 1;
  int64_t most = sparse.size(batch) * sparse.size(batch + 1);
  if (sparse.layout() == c10::kSparseBsr || sparse.layout() == c10::kSparseBsc) {
    most /= std::max<int64_t>(members[2].size(batch + 1) * members[2].size(batch + 2), 1);
  }
  return most;
}

// The dimension of a member that counts the stored elements; -1 if it has none.
int64_t counting_dim(const at::Tensor& sparse, const std::vector<at::Tensor>& members, size_t index) {
  if (sparse.layout() == c10::kSparse) {
    return index == 0 ? 1 : 0;
  }
  return index == 0 ? -1 : members[0].dim() - 1;
}

}  // namespace

bool counts_may_be_symbols(const ModeState& mode) {
  const std::shared_ptr<SymbolSource> symbols = symbol_source_of(mode);
  return symbols != nullptr && symbols->gives_sizes();
}

bool has_symbolic_count(const at::Tensor& sparse) {
  return is_sparse_layout(sparse.layout()) &&
      members_of(sparse).back().unsafeGetTensorImpl()->has_symbolic_sizes_strides();
}

at::Tensor with_unknown_count(
    const at::Tensor& sparse,
    bool coalesced,
    c10::Device device,
    const ModePtr& mode,
    std::optional<int64_t> most) {
  const std::vector<at::Tensor> members = members_of(sparse);
  const std::optional<int64_t> high = most ? most : most_stored(sparse, members, coalesced);
  const c10::SymInt count = symbol_source_of(*mode)->new_size(0, high);
  const FakeMode in_mode(mode);
  std::vector<at::Tensor> made;
  for (size_t i = 0; i < members.size(); ++i) {
    const c10::SymIntArrayRef given = members[i].sym_sizes();
    c10::SymDimVector sizes(given.begin(), given.end());
    if (const int64_t dim = counting_dim(sparse, members, i); dim >= 0) {
      sizes[dim] = count;
    }
    made.push_back(at::empty_symint(sizes, at::TensorOptions().dtype(members[i].scalar_type()).device(device)));
  }
  if (sparse.layout() != c10::kSparse) {
    return make_layout_fake(sparse, made, device, mode);
  }
  const auto& impl = *static_cast<const at::SparseTensorImpl*>(sparse.unsafeGetTensorImpl());
  return make_sparse_fake(
      impl.sparse_dim(), impl.dense_dim(), sparse.sizes(), made[0], made[1], coalesced, device, mode);
}

}  // namespace torchfake
