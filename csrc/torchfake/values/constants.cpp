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

// Whether all values of the one output follow from arguments that are no tensors.
bool follows_from_arguments(const Call& call) {
  const OpTraits& traits = call.traits;
  const bool is_made = traits.values == ValueSource::kConstant && !traits.mutates;
  const bool is_overwritten = traits.values == ValueSource::kOverwrite && call.tensors().size() == 1;
  return (is_made || is_overwritten) && !traits.reads_files && traits.num_returns == 1 &&
      outputs_of(call).front().isTensor();
}

}  // namespace

c10::intrusive_ptr<c10::StorageImpl> constant_of(const Call& call) {
  if (!follows_from_arguments(call)) {
    return {};
  }
  const at::Tensor& output = outputs_of(call).front().toTensor();
  const FakeTensorImpl* fake = output.defined() ? as_fake(output) : nullptr;
  const c10::StorageImpl* bytes = fake == nullptr || !fake->has_storage() ? nullptr : known_bytes(fake->storage_impl());
  const bool is_kept = bytes != nullptr && bytes->nbytes() > 0 && bytes->nbytes() <= kMostBytes && fills_storage(*fake);
  return is_kept ? copy_of(*bytes) : c10::intrusive_ptr<c10::StorageImpl>();
}

void give_constant(const FakeTensorImpl& output, const c10::StorageImpl& constant) {
  if (C10_LIKELY(has_room_for(output, constant.nbytes()))) {
    set_known_bytes(output.storage_impl(), output.claimed_device(), copy_of(constant));
  }
}

bool is_covered_by(const FakeTensorImpl& fake, const c10::StorageImpl& constant) {
  return fills_storage(fake) && fake.storage_impl()->nbytes() == constant.nbytes();
}

void overwrite_with_constant(const FakeTensorImpl& fake, const c10::StorageImpl& constant) {
  c10::StorageImpl* storage = fake.storage_impl();
  c10::StorageImpl* bytes = partly_known_bytes(storage);
  if (bytes == nullptr) {
    forget_known_bytes(storage);
    return give_constant(fake, constant);
  }
  std::memcpy(bytes->mutable_data(), constant.data(), constant.nbytes());
  if (storage_context(storage)->unknown) {
    complete_known_bytes(storage);
  }
}

}  // namespace torchfake
