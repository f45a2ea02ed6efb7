// Layout calls, the last resort: the real CPU kernel on small real tensors in place of the fakes.
#include <ATen/ops/_sparse_compressed_tensor_unsafe.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty.h>

#include <torchfake/core/errors.h>
#include <torchfake/core/kernel_environment.h>
#include <torchfake/core/layout_fake.h>
#include <torchfake/core/plain_cpu.h>
#include <torchfake/core/to_fake.h>
#include <torchfake/dispatch/layout_call.h>
#include <torchfake/dispatch/refusals.h>
#include <torchfake/dispatch/wrap_outputs.h>
#include <torchfake/values/known_values.h>

#include <limits>
#include <numeric>

namespace torchfake {

namespace {

constexpr size_t kMaxBytes = size_t{16} << 20;
constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

// Note [Stand-ins]
// Each run takes other values and other places of the stored elements, for whatever is not known. An outcome is taken for
// the one that every real tensor of this metadata has where all runs agree on it.
//   values    ones, then zeros; integers are zeros, which are valid as indices
//   places    along the rows from the first on; along the rows up to the last; by turns for the arguments, so that they do not
//             meet; along the columns. Where one place may be stored twice (uncoalesced), all are the same in the second run
constexpr int kRuns = 4;

size_t bytes_of(const Call& call) {
  size_t bytes = 0;
  for (const TensorArg& tensor : call.tensors()) {
    bytes += static_cast<size_t>(tensor.impl->numel()) * tensor.impl->itemsize();
  }
  return bytes;
}

class StandIns {
 public:
  explicit StandIns(int run) : run_(run) {}

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
    at::Tensor made = as_fake(tensor) != nullptr ? strided(tensor) : sparse(tensor);
    made_.emplace_back(tensor, made);
    return made;
  }

  // The fake that `real` stands for, or nothing.
  std::optional<at::Tensor> fake_of(const at::Tensor& real) const {
    for (const auto& [fake, made] : made_) {
      if (made.is_same(real)) {
        return fake;
      }
    }
    return std::nullopt;
  }

  // The strided fake whose stand-in shares its storage with `real`, or nothing.
  std::optional<at::Tensor> base_of(const at::Tensor& real) const {
    for (const auto& [fake, made] : strided_) {
      if (made.storage().is_alias_of(real.storage()) && made.scalar_type() == real.scalar_type()) {
        return fake;
      }
    }
    return std::nullopt;
  }

 private:
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
    if (std::optional<at::Tensor> known = known_tensor(fake, kNoLimit)) {
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

  // All of the storage: elements may lie on each other (expand).
  static void fill_storage(const at::Tensor& tensor) {
    const auto count = static_cast<int64_t>(tensor.storage().nbytes() / tensor.itemsize());
    at::as_strided(tensor, {count}, {1}, 0).fill_(1);
  }

  static c10::intrusive_ptr<c10::StorageImpl> storage_impl(const at::Tensor& tensor) {
    return c10::intrusive_ptr<c10::StorageImpl>::unsafe_reclaim_from_nonowning(tensor.storage().unsafeGetStorageImpl());
  }

  // Places in a tensor of these sizes, counted along its rows, in order.
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
        for (const int64_t size : sizes) {  // the first dimension is counted up first
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

  at::Tensor sparse(const at::Tensor& tensor) {
    const std::vector<at::Tensor> members = members_of(tensor);
    std::vector<at::Tensor> made;
    bool places_known = true;
    for (size_t i = 0; i < members.size(); ++i) {
      const bool is_index = i + 1 < members.size();
      const bool known = known_tensor(*as_fake(members[i]), kNoLimit).has_value();
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
      const int64_t nnz = impl.nnz();
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

  // In blocks.
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
};

c10::IValue map_tensors(const c10::IValue& value, const std::function<at::Tensor(const at::Tensor&)>& map) {
  if (value.isTensor()) {
    return map(value.toTensor());
  }
  if (!value.isList()) {
    return value;
  }
  c10::impl::GenericList list = value.toList().copy();
  for (size_t i = 0; i < list.size(); ++i) {
    const c10::IValue& element = list.get(i);
    if (element.isTensor()) {
      list.set(i, map(element.toTensor()));
    }
  }
  return list;
}

// What fakes show of a result, as text to compare.
std::string describe(const c10::IValue& value);

std::string describe(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    return "undefined";
  }
  std::string text = c10::str(tensor.layout(), tensor.scalar_type(), tensor.sizes());
  if (tensor.layout() == c10::kStrided) {
    return c10::str(text, tensor.strides(), tensor.storage_offset());
  }
  if (tensor.layout() == c10::kSparse) {
    text += static_cast<const at::SparseTensorImpl*>(tensor.unsafeGetTensorImpl())->coalesced() ? "coalesced" : "";
  }
  if (is_sparse_layout(tensor.layout())) {
    for (const at::Tensor& member : members_of(tensor)) {
      text += describe(member);
    }
  }
  return text;
}

std::string describe(const c10::IValue& value) {
  if (value.isTensor()) {
    return describe(value.toTensor());
  }
  if (value.isTensorList()) {
    std::string text;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      text += describe(tensor) + ";";
    }
    return text;
  }
  return c10::str(value);
}

struct Run {
  StandIns stand_ins;
  torch::jit::Stack results;

  explicit Run(int number) : stand_ins(number) {}
};

std::unique_ptr<Run> run(const Call& call, int number) {
  PlainCpu plain;
  auto made = std::make_unique<Run>(number);
  for (size_t i = 0; i < call.num_args(); ++i) {
    if (call.traits.args[i].kind == ArgKind::kDevice) {
      made->results.emplace_back(call.arg(i).isNone() && call.has_fake() ? c10::IValue() : c10::Device(c10::kCPU));
    } else {
      made->results.push_back(
          map_tensors(call.arg(i), [&](const at::Tensor& tensor) { return made->stand_ins.of(tensor); }));
    }
  }
  call.op.callBoxed(&made->results);
  return made;
}

// The results, and what became of the arguments that are written to.
std::string outcome_of(const Call& call, Run& run) {
  std::string text;
  for (const c10::IValue& value : run.results) {
    text += describe(value) + "\n";
  }
  for (const TensorArg& tensor : call.tensors()) {
    if (tensor.is_written) {
      const at::Tensor given(c10::intrusive_ptr<c10::TensorImpl>::unsafe_reclaim_from_nonowning(tensor.impl));
      text += describe(run.stand_ins.of(given)) + "\n";
    }
  }
  return text;
}

[[noreturn]] void refuse_dependence(const Call& call) {
  const bool is_value = std::none_of(
      call.op.schema().returns().begin(), call.op.schema().returns().end(), [](const c10::Argument& result) {
        return result.real_type()->kind() == c10::TypeKind::TensorType ||
            result.real_type()->kind() == c10::TypeKind::ListType;
      });
  raise(
      is_value ? ErrorKind::kDataDependentOutput : ErrorKind::kDynamicOutputShape,
      call.op_name(),
      "the result depends on values or on which elements are stored, and fake tensors hold neither. The number of "
      "stored "
      "elements is known only where indices and values follow from small constants; use an operator whose outcome is "
      "fixed, or let real values travel along (propagate_real_tensors).");
}

class Wrapping {
 public:
  Wrapping(const StandIns& stand_ins, c10::Device device, const ModePtr& mode)
      : stand_ins_(stand_ins), device_(device), mode_(mode) {}

  at::Tensor strided(const at::Tensor& real) const {
    if (std::optional<at::Tensor> fake = stand_ins_.fake_of(real)) {
      return *fake;
    }
    if (std::optional<at::Tensor> base = stand_ins_.base_of(real)) {
      return at::as_strided(*base, real.sizes(), real.strides(), real.storage_offset());
    }
    at::Tensor fake = to_fake(real, mode_, device_);
    if (stand_ins_.all_known() && real.numel() <= value_limit(mode_->options)) {
      // The fake's storage mirrors the real one's, which nobody else has.
      set_known_bytes(fake.storage().unsafeGetStorageImpl(), device_, real.storage().getWeakStorageImpl().lock());
    }
    return fake;
  }

  std::vector<at::Tensor> members(const at::Tensor& sparse) const {
    std::vector<at::Tensor> members;
    for (const at::Tensor& member : members_of(sparse)) {
      members.push_back(strided(member));
    }
    return members;
  }

  at::Tensor any(const Call& call, const at::Tensor& real) const {
    if (!real.defined()) {
      return real;
    }
    if (std::optional<at::Tensor> fake = stand_ins_.fake_of(real)) {
      return *fake;
    }
    if (real.layout() == c10::kStrided && !real.is_quantized()) {
      return strided(real);
    }
    if (!is_sparse_layout(real.layout())) {
      refuse_layout(call);
    }
    return make_layout_fake(real, members(real), device_, mode_);
  }

 private:
  const StandIns& stand_ins_;
  const c10::Device device_;
  const ModePtr& mode_;
};

}  // namespace

void stand_in_call(Call& call, c10::Device device, const ModePtr& mode) {
  const auto refuse = [&](const char* why) {
    raise(
        ErrorKind::kUnsupportedOperator,
        call.op_name(),
        c10::str("no rule can tell what this operator returns for these layouts, and ", why, "."));
  };
  if (!mode->options.allow_fallback_kernels) {
    refuse("the mode has allow_fallback_kernels=False");
  }
  if (bytes_of(call) > kMaxBytes) {
    refuse("its inputs are too large to try its CPU kernel on tensors in their place");
  }
  KernelEnvironment::note_all();
  const std::unique_ptr<Run> first = run(call, 0);
  const std::string outcome = outcome_of(call, *first);
  for (int number = 1; number < kRuns && !first->stand_ins.all_known(); ++number) {
    const std::unique_ptr<Run> other = run(call, number);
    if (outcome_of(call, *other) != outcome) {
      refuse_dependence(call);
    }
  }
  const FakeMode in_mode(mode);
  const Wrapping wrapping(first->stand_ins, device, mode);
  for (const TensorArg& tensor : call.tensors()) {
    const at::Tensor given(c10::intrusive_ptr<c10::TensorImpl>::unsafe_reclaim_from_nonowning(tensor.impl));
    if (!tensor.is_written || !is_any_fake(given)) {
      continue;
    }
    const at::Tensor real = first->stand_ins.of(given);
    if (as_fake(given) != nullptr) {
      lay_out_as(given, real);
      forget_known_bytes(given.storage().unsafeGetStorageImpl());
    } else {
      set_members(given, real, wrapping.members(real));
    }
  }
  torch::jit::drop(*call.stack, call.num_args());
  for (const c10::IValue& value : first->results) {
    call.stack->push_back(map_tensors(value, [&](const at::Tensor& real) { return wrapping.any(call, real); }));
  }
}

}  // namespace torchfake
