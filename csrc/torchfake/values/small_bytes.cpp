// Memory for the known values of small tensors.
#include <torchfake/values/small_bytes.h>

#include <c10/core/CPUAllocator.h>

#include <torchfake/core/recycled.h>

#include <cstdint>
#include <cstring>

namespace torchfake {

namespace {

struct BytesImpl final : c10::StorageImpl, Recycled<BytesImpl> {
  using StorageImpl::StorageImpl;
};

// Aligned as by PyTorch's CPU allocator.
template <size_t kSize>
struct Block final : Recycled<Block<kSize>> {
  static constexpr size_t kAlignment = 64;

  // The deleter knows the block itself: a DataPtr may move to another storage.
  static c10::DataPtr make() {
    auto* block = new Block;
    const auto address = reinterpret_cast<uintptr_t>(block->memory);
    void* aligned = block->memory + (kAlignment - address % kAlignment) % kAlignment;
    return {aligned, block, [](void* made) { delete static_cast<Block*>(made); }, c10::Device(c10::kCPU)};
  }

  char memory[kSize + kAlignment];
};

constexpr size_t kSmall = 256;
constexpr size_t kMedium = 2048;

c10::DataPtr new_data(size_t nbytes) {
  if (nbytes <= kSmall) {
    return Block<kSmall>::make();
  }
  return nbytes <= kMedium ? Block<kMedium>::make() : c10::GetCPUAllocator()->allocate(nbytes);
}

}  // namespace

c10::intrusive_ptr<c10::StorageImpl> new_bytes(size_t nbytes) {
  return c10::make_intrusive<BytesImpl>(
      c10::StorageImpl::use_byte_size_t(),
      c10::SymInt(static_cast<int64_t>(nbytes)),
      new_data(nbytes),
      c10::GetCPUAllocator(),
      /*resizable=*/true);
}

c10::intrusive_ptr<c10::StorageImpl> copy_of_bytes(const c10::StorageImpl& bytes, size_t nbytes) {
  c10::intrusive_ptr<c10::StorageImpl> copy = new_bytes(nbytes);
  std::memcpy(copy->mutable_data(), bytes.data(), nbytes);
  return copy;
}

}  // namespace torchfake
