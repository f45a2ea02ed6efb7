// Memory of claimed cards: what the storages that live would take, and where that is too much.
#pragma once

#include <torchfake/core/allocation.h>

#include <array>
#include <atomic>
#include <vector>

namespace torchfake {

// Counts the storages of one accelerator by index, each rounded up to the 512 bytes that PyTorch's allocator hands out at
// least. Thread-safe.
class CardMemory final : public StorageObserver {
 public:
  // The bytes that each card has, `context` of which are taken before the first tensor. Where there are none nothing is
  // refused.
  CardMemory(c10::DeviceType type, std::vector<int64_t> capacities, int64_t context);

  int64_t allocated(c10::DeviceIndex index) const;
  int64_t peak(c10::DeviceIndex index) const;
  int64_t allocations(c10::DeviceIndex index) const;  // how many there have been
  int64_t live(c10::DeviceIndex index) const;  // how many are alive
  void reset_peak(c10::DeviceIndex index);

  // Throws c10::OutOfMemoryError, in PyTorch's words, where the card has no room for the allocation.
  void on_alloc(const Allocation& allocation) override;
  void on_resize(const Allocation& allocation, size_t old_nbytes) override;
  void on_free(const void* id, c10::Device device, size_t nbytes) noexcept override;

 private:
  static constexpr size_t kCards = 128;  // as many as an index can name

  struct Card {
    std::atomic<int64_t> allocated{0};
    std::atomic<int64_t> peak{0};
    std::atomic<int64_t> allocations{0};
    std::atomic<int64_t> live{0};
  };

  void add(c10::Device device, int64_t nbytes, int64_t asked);
  Card& card(c10::DeviceIndex index) {
    return cards_[static_cast<uint8_t>(index) % kCards];
  }
  const Card& card(c10::DeviceIndex index) const {
    return cards_[static_cast<uint8_t>(index) % kCards];
  }

  const c10::DeviceType type_;
  const std::vector<int64_t> capacities_;
  const int64_t context_;
  std::array<Card, kCards> cards_;
};

}  // namespace torchfake
