// Memory of claimed cards: what the live storages would occupy.
#pragma once

#include <torchfake/core/allocation.h>
#include <torchfake/core/storage_counts.h>

namespace torchfake {

// Counts the storages of one accelerator by device index, each rounded up to a multiple of 512 bytes, the block
// granularity of PyTorch's allocator. Never refuses an allocation. Thread-safe.
class CardMemory final : public StorageObserver {
 public:
  explicit CardMemory(c10::DeviceType type) : StorageObserver(StorageCounts::take(type)) {}
  ~CardMemory() override {
    StorageCounts::give_back(counts());
  }
  CardMemory(const CardMemory&) = delete;
  CardMemory& operator=(const CardMemory&) = delete;
  CardMemory(CardMemory&&) = delete;
  CardMemory& operator=(CardMemory&&) = delete;

  DeviceCounts& card(c10::DeviceIndex index) const {
    return (*counts())[index];
  }

  void on_alloc(const Allocation& allocation) override;
  void on_resize(const Allocation& allocation, size_t old_nbytes) override;
  void on_free(const void* id, c10::Device device, size_t nbytes) noexcept override;
};

}  // namespace torchfake
