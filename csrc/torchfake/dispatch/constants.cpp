// Beside step 3: the values of what an operator makes from constants, kept with the outcome in the cache.
#include <torchfake/dispatch/constants.h>

#include <c10/core/CPUAllocator.h>

#include <torchfake/dispatch/known_values.h>

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
  return traits.values == ValueSource::kConstant && !traits.mutates && traits.name != "aten::from_file";
}

}  // namespace

void remember_constant(const Call& call, const CacheEntry& entry) {
  if (!follows_from_arguments(call.traits) || !entry.is_one_tensor || has_constant(entry) ||
      entry.outputs.front().kind != OutputRecipe::Kind::kFresh) {
    return;
  }
  const FakeTensorImpl* output = as_fake(outputs_of(call).front().toTensor());
  const c10::StorageImpl* bytes = output == nullptr ? nullptr : known_bytes(output->storage_impl());
  if (bytes != nullptr && bytes->nbytes() > 0 && bytes->nbytes() <= kMostBytes) {
    shape_cache::set_constant(entry, copy_of(*bytes));
  }
}

void give_constant(const at::Tensor& output, const CacheEntry& entry) {
  const FakeTensorImpl& fake = *as_fake(output);
  if (C10_UNLIKELY(!has_room_for(fake, fake.unsafe_storage().nbytes()))) {
    return;
  }
  set_known_bytes(fake.storage_impl(), fake.claimed_device(), copy_of(*entry.constant.load(std::memory_order_acquire)));
}

}  // namespace torchfake
