// Constant propagation: the values of what an operator makes from constants.
#include <torchfake/values/constants.h>

#include <c10/core/CPUAllocator.h>

#include <torchfake/values/known_values.h>

#include <cstring>

namespace torchfake {

namespace {

constexpr size_t kMostBytes = 16384;

c10::intrusive_ptr<c10::StorageImpl> copy_of(const c10::StorageImpl& bytes) {
  const size_t nbytes = bytes.nbytes();
  auto copy = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(),
      c10::SymInt(static_cast<int64_t>(nbytes)),
      c10::GetCPUAllocator(),
      /*resizable=*/true);
  std::memcpy(copy->mutable_data(), bytes.data(), nbytes);
  return copy;
}

// An operator that reads a file makes other values when the file has changed.
bool follows_from_arguments(const OpTraits& traits) {
  return traits.values == ValueSource::kConstant && !traits.mutates && !traits.reads_files;
}

}  // namespace

c10::intrusive_ptr<c10::StorageImpl> constant_of(const Call& call) {
  if (!follows_from_arguments(call.traits) || call.traits.num_returns != 1 || !outputs_of(call).front().isTensor()) {
    return {};
  }
  const at::Tensor& output = outputs_of(call).front().toTensor();
  const FakeTensorImpl* fake = output.defined() ? as_fake(output) : nullptr;
  const c10::StorageImpl* bytes = fake == nullptr || !fake->has_storage() ? nullptr : known_bytes(fake->storage_impl());
  const bool is_kept = bytes != nullptr && bytes->nbytes() > 0 && bytes->nbytes() <= kMostBytes;
  return is_kept ? copy_of(*bytes) : c10::intrusive_ptr<c10::StorageImpl>();
}

void give_constant(const at::Tensor& output, const c10::StorageImpl& constant) {
  const FakeTensorImpl& fake = *as_fake(output);
  if (C10_LIKELY(has_room_for(fake, fake.unsafe_storage().nbytes()))) {
    set_known_bytes(fake.storage_impl(), fake.claimed_device(), copy_of(constant));
  }
}

}  // namespace torchfake
