// Constant propagation: known values of small fakes, and where they are stored.
#include <torchfake/values/known_values.h>

#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>

#include <torchfake/core/call_context.h>
#include <torchfake/core/fake_storage.h>
#include <torchfake/core/layout_fake.h>
#include <torchfake/core/plain_cpu.h>
#include <torchfake/core/to_fake.h>
#include <torchfake/values/constants.h>
#include <torchfake/values/repeated_values.h>

#include <cstring>

namespace torchfake {

namespace {

// A tensor of zeros without memory, recognisable by its dispatch key.
bool is_zero_tensor(const FakeTensorImpl& fake) {
  return fake.key_set().has(c10::DispatchKey::ZeroTensor);
}

at::Tensor mask_of_unknown(const FakeTensorImpl& fake) {
  return cpu_tensor_over(storage_context(storage_of(fake))->unknown, fake);
}

// Whether all bytes of this view have been written, in a partially known storage.
bool is_written_whole(const FakeTensorImpl& fake) {
  if (fake.is_conj() || fake.is_neg()) {
    return false;
  }
  PlainCpu plain;
  const at::Tensor mask = mask_of_unknown(fake);
  // A contiguous tensor may have arbitrary strides in dimensions of size one.
  const at::Tensor flat = mask.is_contiguous() ? mask.as_strided({mask.numel()}, {1}) : mask.contiguous().view({-1});
  return !flat.view(c10::kByte).any().item<bool>();
}

}  // namespace

bool is_known(const FakeTensorImpl& fake, int64_t limit) {
  if (fake.has_symbolic_sizes_strides() || fake.numel() > limit) {
    return false;
  }
  if (is_zero_tensor(fake) || fake.numel() == 0) {
    return true;  // an empty tensor has no values to track
  }
  c10::StorageImpl* storage = storage_of(fake);
  if (storage == nullptr || partly_known_bytes(storage) == nullptr) {
    return false;
  }
  return storage_context(storage)->unknown == nullptr || is_written_whole(fake);
}

bool is_repeated(const FakeTensorImpl& fake, int64_t limit) {
  c10::StorageImpl* storage = storage_of(fake);
  return storage != nullptr && storage_context(storage) != nullptr && repeated_tensor(fake, limit).has_value();
}

void expect_values(const FakeTensorImpl& fake) {
  const size_t nbytes = storage_of(fake)->nbytes();
  c10::intrusive_ptr<c10::StorageImpl> unknown = zero_bytes(nbytes);
  std::memset(unknown->mutable_data(), 0xFF, nbytes);
  begin_known_bytes(storage_of(fake), fake.claimed_device(), zero_bytes(nbytes), std::move(unknown));
}

void mark_written(const FakeTensorImpl& fake) {
  PlainCpu plain;
  mask_of_unknown(fake).zero_();
  storage_context(storage_of(fake))->is_blank = false;
  const c10::StorageImpl& unknown = *storage_context(storage_of(fake))->unknown;
  const auto* bytes = static_cast<const char*>(unknown.data());
  if (std::all_of(bytes, bytes + unknown.nbytes(), [](char byte) { return byte == 0; })) {
    complete_known_bytes(storage_of(fake));
  }
}

bool fills_storage(const c10::TensorImpl& impl) {
  if (!impl.has_storage() || impl.has_symbolic_sizes_strides()) {
    return false;
  }
  const std::optional<int64_t> nbytes = impl.unsafe_storage().sym_nbytes().maybe_as_int();  // or an expression
  return impl.storage_offset() == 0 && impl.is_non_overlapping_and_dense() &&
      nbytes == impl.numel() * static_cast<int64_t>(impl.itemsize());
}

at::Tensor new_buffer(const c10::TensorImpl& like) {
  return at::empty_strided(like.sizes(), like.strides(), at::TensorOptions().dtype(like.dtype()).device(c10::kCPU));
}

at::Tensor view_of_bytes(const FakeTensorImpl& fake) {
  return cpu_tensor_over(
      c10::intrusive_ptr<c10::StorageImpl>::unsafe_reclaim_from_nonowning(partly_known_bytes(storage_of(fake))), fake);
}

std::optional<at::Tensor> known_tensor(const FakeTensorImpl& fake, int64_t limit) {
  if (!is_known(fake, limit)) {
    return !fake.has_symbolic_sizes_strides() && fake.numel() <= limit ? repeated_tensor(fake, limit) : std::nullopt;
  }
  if (is_zero_tensor(fake)) {
    PlainCpu plain;
    return at::zeros(fake.sizes(), at::TensorOptions().dtype(fake.dtype()).device(c10::kCPU));
  }
  if (fake.numel() == 0) {
    PlainCpu plain;
    return new_buffer(fake);
  }
  return view_of_bytes(fake);
}

std::optional<c10::Scalar> known_item(const FakeTensorImpl& fake) {
  const std::optional<at::Tensor> known = known_tensor(fake, 1);
  if (!known) {
    return std::nullopt;
  }
  PlainCpu plain;
  return known->item();
}

std::optional<at::Tensor> read_values(const FakeTensorImpl& fake, int64_t limit) {
  if (CallContext* call = CallContext::current()) {
    call->is_unkeyed = true;
  }
  std::optional<at::Tensor> values = known_tensor(fake, limit);
  return values ? values : repeated_tensor(fake, limit);
}

bool is_in_memory(const FakeTensorImpl& fake) {
  return is_known(fake, std::numeric_limits<int64_t>::max());
}

bool has_room_for(const FakeTensorImpl& fake, size_t nbytes) {
  const FakeModeOptions& options = fake.mode()->options;
  return options.propagate_real_tensors || known_bytes_in_use() + nbytes <= options.known_bytes;
}

void make_known(const FakeTensorImpl& fake, const at::Tensor& real) {
  c10::StorageImpl* storage = storage_of(fake);
  if (C10_UNLIKELY(!has_room_for(fake, storage->nbytes()))) {
    return forget_known_bytes(storage);
  }
  const bool adoptable = real.strides() == fake.strides() && fills_storage(*real.unsafeGetTensorImpl()) &&
      real.storage().use_count() == 1 && real.storage().nbytes() == storage->nbytes();
  if (adoptable) {
    set_known_bytes(storage, fake.claimed_device(), real.storage().getWeakStorageImpl().lock());
    return;
  }
  PlainCpu plain;
  at::Tensor copy = new_buffer(fake);
  copy.copy_(real);
  set_known_bytes(storage, fake.claimed_device(), copy.storage().getWeakStorageImpl().lock());
}

int64_t value_limit(const FakeModeOptions& options) {
  return options.propagate_real_tensors ? std::numeric_limits<int64_t>::max() : options.known_values.get();
}

bool has_values(const at::Tensor& real) {
  return real.defined() && real.is_cpu() && !is_any_fake(real) && real.has_storage() &&
      (real.numel() == 0 || real.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get() != nullptr);
}

at::Tensor lift(const at::Tensor& real, const ModePtr& mode, bool copy) {
  // A fake may claim the CPU too, but has no data to copy. Its known values are kept.
  if (!real.defined() || is_any_fake(real)) {
    return real;
  }
  at::Tensor fake = to_fake(real, mode);
  const FakeTensorImpl* impl = as_fake(fake);  // null for other layouts, whose member tensors hold the known values
  if (impl != nullptr && fills_storage(*impl) && real.numel() <= value_limit(mode->options) && has_values(real)) {
    PlainCpu plain;
    make_known(*impl, copy ? real.clone() : real);
    if (mode->options.propagate_real_tensors && real.numel() <= mode->options.known_values) {
      mark_as_constant(*impl);
    }
  }
  return fake;
}

}  // namespace torchfake
