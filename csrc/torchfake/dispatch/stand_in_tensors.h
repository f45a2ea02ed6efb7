// Layout calls: the small real tensors that replace the fakes of a call.
#pragma once

#include <ATen/ops/_sparse_compressed_tensor_unsafe.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/quantized/QTensorImpl.h>

#include <torchfake/core/fake_storage.h>
#include <torchfake/core/layout_fake.h>
#include <torchfake/core/plain_cpu.h>
#include <torchfake/values/known_values.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

namespace torchfake {

// Note [Stand-in tensors]
// Each run uses different values and different positions of the stored elements, wherever these are unknown. If all
// runs agree on the outcome, it is taken to hold for every real tensor with this metadata.
//   values     ones, then zeros; integers are zeros, which are valid indices
//   positions  row by row from the first; row by row up to the last; alternating between the arguments, so that they do
//              not coincide; column by column. If positions may repeat (uncoalesced), all are equal in the second run
inline constexpr int kRuns = 4;

// Created inside a PlainCpu scope. A fake always has the same stand-in, and fakes that share a storage have stand-ins
// that share one.
class StandInTensors {
 public:
  explicit StandInTensors(int run) : run_(run) {}

  bool all_known() const {
    return all_known_;
  }

  at::Tensor of(const at::Tensor& tensor) {
    if (!tensor.defined() || !is_any_fake(tensor)) {
      return tensor;
    }
    for (const auto& [fake, made] : made_) {
      if (fake.is_same(tensor)) {
        return made;
      }
    }
    const FakeQuantizedImpl* quantized_fake = as_quantized_fake(tensor);
    at::Tensor made = as_fake(tensor) != nullptr ? strided(tensor)
        : quantized_fake != nullptr              ? quantized(*quantized_fake)
                                                 : sparse(tensor);
    made_.emplace_back(tensor, made);
    return made;
  }

  // The fake that `real` replaces, or nullopt.
  std::optional<at::Tensor> fake_of(const at::Tensor& real) const {
    for (const auto& [fake, made] : made_) {
      if (made.is_same(real)) {
        return fake;
      }
    }
    return std::nullopt;
  }

  // The storage of the quantized fake whose stand-in shares its storage with `real`, or nullopt.
  std::optional<c10::Storage> quantized_storage_of(const at::Tensor& real) const {
    for (const auto& [fake, made] : quantized_) {
      if (made.get() == real.storage().unsafeGetStorageImpl()) {
        return fake;
      }
    }
    return std::nullopt;
  }

  // The strided fake whose stand-in shares its storage with `real`, or nullopt.
  std::optional<at::Tensor> base_of(const at::Tensor& real) const {
    for (const auto& [fake, made] : strided_) {
      if (made.storage().is_alias_of(real.storage()) && made.scalar_type() == real.scalar_type()) {
        return fake;
      }
    }
    return std::nullopt;
  }

 private:
  // How many elements are stored where that is unknown.
  static constexpr int64_t kCounts[kRuns] = {2, 0, 1, 3};
  static constexpr int64_t kAnySize = std::numeric_limits<int64_t>::max();

  at::Tensor strided(const at::Tensor& tensor) {
    for (const auto& [fake, made] : strided_) {
      if (fake.is_same(tensor)) {
        return made;
      }
      if (fake.storage().is_alias_of(tensor.storage())) {
        at::Tensor view = cpu_tensor_over(storage_impl(made), *tensor.unsafeGetTensorImpl());
        strided_.emplace_back(tensor, view);
        return view;
      }
    }
    const FakeTensorImpl& fake = *as_fake(tensor);
    at::Tensor made = cpu_tensor_over(zero_bytes(tensor.storage().nbytes()), fake);
    if (std::optional<at::Tensor> known = known_tensor(fake, kAnySize)) {
      made = fake.is_non_overlapping_and_dense() ? made.copy_(*known) : known->clone();
    } else {
      all_known_ = false;
      if (run_ != 1 && !c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/false)) {
        fill_storage(made);
      }
    }
    strided_.emplace_back(tensor, made);
    return made;
  }

  at::Tensor quantized(const FakeQuantizedImpl& fake) {
    all_known_ = false;
    c10::intrusive_ptr<c10::StorageImpl> bytes;
    for (const auto& [storage, made] : quantized_) {
      if (storage.is_alias_of(fake.storage())) {
        bytes = made;
      }
    }
    if (!bytes) {
      bytes = zero_bytes(fake.storage().nbytes());
      std::memset(bytes->mutable_data(), run_ != 1 ? 1 : 0, bytes->nbytes());
      quantized_.emplace_back(fake.storage(), bytes);
    }
    at::Tensor made = at::detail::make_tensor<at::QTensorImpl>(
        c10::Storage(bytes), c10::DispatchKeySet(c10::DispatchKey::QuantizedCPU), fake.dtype(), quantizer_for(fake));
    made.unsafeGetTensorImpl()->set_sizes_and_strides(fake.sizes(), fake.strides(), fake.storage_offset());
    return made;
  }

  // Unknown parameters differ in each run.
  at::QuantizerPtr quantizer_for(const FakeQuantizedImpl& fake) const {
    at::QuantizerPtr given = fake.any_quantizer();
    const auto dtype = c10::typeMetaToScalarType(fake.dtype());
    if (fake.parameters_are_known()) {
      return given;
    }
    if (given->qscheme() == at::kPerTensorAffine) {
      return at::make_per_tensor_affine_quantizer(1 + run_, run_, dtype);
    }
    const auto& channels = static_cast<const at::PerChannelAffineQuantizer&>(*given);
    return at::make_per_channel_affine_quantizer(
        at::full_like(channels.scales(), 1 + run_),
        at::full_like(channels.zero_points(), run_),
        channels.axis(),
        dtype);
  }

  // Fills the whole storage, because elements may overlap (expand).
  static void fill_storage(const at::Tensor& tensor) {
    const auto count = static_cast<int64_t>(tensor.storage().nbytes() / tensor.itemsize());
    at::as_strided(tensor, {count}, {1}, 0).fill_(1);
  }

  static c10::intrusive_ptr<c10::StorageImpl> storage_impl(const at::Tensor& tensor) {
    return c10::intrusive_ptr<c10::StorageImpl>::unsafe_reclaim_from_nonowning(tensor.storage().unsafeGetStorageImpl());
  }

  // Positions in a tensor of these sizes, counted row by row, in ascending order.
  std::vector<int64_t> places(int64_t count, c10::IntArrayRef sizes, bool may_repeat) const {
    const int64_t all = std::max<int64_t>(c10::multiply_integers(sizes), 1);
    const bool by_columns = run_ == 3;
    const bool at_the_end = run_ == 1 || (run_ == 2 && sparse_count_ % 2 == 1);
    std::vector<int64_t> places(count, 0);
    if (may_repeat && run_ == 1) {
      return places;
    }
    const int64_t first = at_the_end ? std::max<int64_t>(all - count, 0) : 0;
    for (int64_t i = 0; i < count; ++i) {
      int64_t place = (first + i) % all;
      if (by_columns) {
        int64_t stride = all;
        int64_t left = place;
        place = 0;
        for (const int64_t size : sizes) {  // the first dimension varies fastest
          stride /= std::max<int64_t>(size, 1);
          place += left % std::max<int64_t>(size, 1) * stride;
          left /= std::max<int64_t>(size, 1);
        }
      }
      places[i] = place;
    }
    std::sort(places.begin(), places.end());
    return places;
  }

  // In place of a member whose size is a symbol: each run has another number of stored elements.
  at::Tensor counted(const at::Tensor& member, int64_t count) {
    all_known_ = false;
    c10::DimVector sizes;
    for (const c10::SymInt& size : member.sym_sizes()) {
      sizes.push_back(size.maybe_as_int().value_or(count));
    }
    return at::full(
        sizes,
        c10::isIntegralType(member.scalar_type(), /*includeBool=*/false) || run_ == 1 ? 0 : 1,
        at::TensorOptions().dtype(member.scalar_type()));
  }

  at::Tensor sparse(const at::Tensor& tensor) {
    const std::vector<at::Tensor> members = members_of(tensor);
    std::vector<at::Tensor> made;
    bool places_known = true;
    if (members.back().unsafeGetTensorImpl()->has_symbolic_sizes_strides()) {
      const int64_t count = std::min(kCounts[run_], tensor.numel());
      for (const at::Tensor& member : members) {
        made.push_back(counted(member, count));
      }
      ++sparse_count_;
      return tensor.layout() == c10::kSparse ? coordinates(tensor, made, false) : compressed(tensor, made, false);
    }
    for (size_t i = 0; i < members.size(); ++i) {
      const bool is_index = i + 1 < members.size();
      const bool known = known_tensor(*as_fake(members[i]), kAnySize).has_value();
      places_known = places_known && (known || !is_index);
      made.push_back(strided(members[i]));
    }
    at::Tensor result = tensor.layout() == c10::kSparse ? coordinates(tensor, made, places_known)
                                                        : compressed(tensor, made, places_known);
    ++sparse_count_;
    return result;
  }

  at::Tensor coordinates(const at::Tensor& tensor, const std::vector<at::Tensor>& made, bool known) {
    const auto& impl = *static_cast<const at::SparseTensorImpl*>(tensor.unsafeGetTensorImpl());
    if (!known) {
      const c10::IntArrayRef sizes = tensor.sizes().slice(0, impl.sparse_dim());
      const int64_t nnz = made[1].size(0);
      const std::vector<int64_t> chosen = places(nnz, sizes, !impl.coalesced());
      at::Tensor indices = at::empty({impl.sparse_dim(), nnz}, at::TensorOptions().dtype(c10::kLong));
      auto* data = indices.mutable_data_ptr<int64_t>();
      for (int64_t i = 0; i < nnz; ++i) {
        int64_t place = chosen[i];
        for (int64_t dim = impl.sparse_dim() - 1; dim >= 0; --dim) {
          const int64_t size = std::max<int64_t>(sizes[dim], 1);
          data[dim * nnz + i] = place % size;
          place /= size;
        }
      }
      made[0].copy_(indices);
    }
    return at::_sparse_coo_tensor_unsafe(
        made[0], made[1], tensor.sizes(), made[1].options().layout(c10::kSparse), impl.coalesced());
  }

  at::Tensor compressed(const at::Tensor& tensor, const std::vector<at::Tensor>& made, bool known) {
    if (!known) {
      const int64_t rows = made[0].size(-1) - 1;
      const int64_t nnz = made[1].size(-1);
      const int64_t columns = columns_of(tensor, made);
      TORCH_CHECK(rows > 0 || (rows == 0 && nnz == 0), "a tensor of ", rows, " rows cannot store ", nnz, " elements");
      const int64_t batches = made[0].dim() == 1 ? 1 : made[0].numel() / (rows + 1);
      at::Tensor compressed = at::empty({batches, rows + 1}, at::TensorOptions().dtype(c10::kLong));
      at::Tensor plain = at::empty({batches, nnz}, at::TensorOptions().dtype(c10::kLong));
      const std::vector<int64_t> chosen = places(nnz, {rows, columns}, /*may_repeat=*/false);
      for (int64_t batch = 0; batch < batches; ++batch) {
        auto* offsets = compressed.mutable_data_ptr<int64_t>() + batch * (rows + 1);
        auto* plain_data = plain.mutable_data_ptr<int64_t>() + batch * nnz;
        std::fill(offsets, offsets + rows + 1, 0);
        for (int64_t i = 0; i < nnz; ++i) {
          plain_data[i] = chosen[i] % std::max<int64_t>(columns, 1);
          const int64_t row = std::min(chosen[i] / std::max<int64_t>(columns, 1), rows - 1);
          ++offsets[row + 1];
        }
        std::partial_sum(offsets, offsets + rows + 1, offsets);
      }
      made[0].copy_(compressed.reshape(made[0].sizes()));
      made[1].copy_(plain.reshape(made[1].sizes()));
    }
    return at::_sparse_compressed_tensor_unsafe(
        made[0], made[1], made[2], tensor.sizes(), made[2].options().layout(tensor.layout()));
  }

  // Counted in blocks for the block layouts.
  static int64_t columns_of(const at::Tensor& tensor, const std::vector<at::Tensor>& made) {
    const int64_t batch = made[0].dim() - 1;
    const bool by_rows = tensor.layout() == c10::kSparseCsr || tensor.layout() == c10::kSparseBsr;
    const int64_t size = tensor.size(batch + (by_rows ? 1 : 0));
    if (tensor.layout() == c10::kSparseBsr || tensor.layout() == c10::kSparseBsc) {
      return size / std::max<int64_t>(made[2].size(batch + 1 + (by_rows ? 1 : 0)), 1);
    }
    return size;
  }

  const int run_;
  bool all_known_ = true;
  int sparse_count_ = 0;
  std::vector<std::pair<at::Tensor, at::Tensor>> made_;
  std::vector<std::pair<at::Tensor, at::Tensor>> strided_;
  std::vector<std::pair<c10::Storage, c10::intrusive_ptr<c10::StorageImpl>>> quantized_;
};

}  // namespace torchfake
