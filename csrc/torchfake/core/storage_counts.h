// Counts the live storages on the devices of one type: the cheapest observer of storages. See allocation.h.
#pragma once

#include <c10/core/Device.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace torchfake {

// Note [Counting storages]
// Every output of an operator in fake_mode() is counted, so counting has to be nearly free. An atomic addition to
// shared memory takes longer than the cache lookup takes per argument, and a call performs five of them. Programs use a
// device from one thread at a time, usually always the same one. So the first thread that counts on a device owns one
// of two sets of numbers and updates it by plain loads and stores; all other threads share the second set and update it
// by atomic additions. The result is the sum of both. The peak is exact as long as threads do not count at the same
// moment.
//
// A thread is identified by the address of a thread-local variable. A later thread may get the address of one that has
// ended, and then inherits what that one owned.
class DeviceCounts {
 public:
  // A storage of `nbytes` is created.
  void add(int64_t nbytes) {
    change(nbytes, 1, 1);
  }
  void resize(int64_t before, int64_t now) {
    change(now - before, static_cast<int64_t>(now > 0) - static_cast<int64_t>(before > 0), 0);
  }
  void remove(int64_t nbytes) {
    change(-nbytes, -1, 0);
  }
  // A kernel's temporary memory, which is not a storage; negative when it is returned.
  void add_temporary(int64_t nbytes) {
    change(nbytes, 0, 0);
  }

  int64_t bytes() const {
    return sum(&Numbers::bytes);
  }
  int64_t live() const {
    return sum(&Numbers::live);
  }
  int64_t allocations() const {
    return sum(&Numbers::allocations);
  }
  int64_t peak() const {
    return peak_.load(std::memory_order_relaxed);
  }
  void reset_peak() {
    peak_.store(bytes(), std::memory_order_relaxed);
  }

  void clear();

 private:
  struct Numbers {
    std::atomic<int64_t> bytes{0};
    std::atomic<int64_t> live{0};
    std::atomic<int64_t> allocations{0};
  };

  int64_t sum(std::atomic<int64_t> Numbers::* number) const {
    return (owned_.*number).load(std::memory_order_acquire) + (shared_.*number).load(std::memory_order_acquire);
  }

  // Whether this thread owns `owned_`.
  bool is_owner() {
    const void* owner = owner_.load(std::memory_order_relaxed);
    return C10_LIKELY(owner == &t_thread) || (owner == nullptr && becomes_owner());
  }
  bool becomes_owner();

  void change(int64_t nbytes, int64_t live, int64_t allocations) {
    if (C10_LIKELY(is_owner())) {
      const auto add = [](std::atomic<int64_t>& number, int64_t amount) {
        number.store(number.load(std::memory_order_relaxed) + amount, std::memory_order_release);
      };
      add(owned_.bytes, nbytes);
      add(owned_.allocations, allocations);
      add(owned_.live, live);
    } else {
      shared_.bytes.fetch_add(nbytes, std::memory_order_release);
      shared_.allocations.fetch_add(allocations, std::memory_order_release);
      shared_.live.fetch_add(live, std::memory_order_release);  // the last: see StorageCounts
    }
    if (nbytes > 0) {
      const int64_t now = bytes();
      int64_t peak = peak_.load(std::memory_order_relaxed);
      while (C10_UNLIKELY(now > peak) && !peak_.compare_exchange_weak(peak, now, std::memory_order_relaxed)) {
      }
    }
  }

  __attribute__((tls_model("initial-exec"))) static inline thread_local char t_thread = 0;

  std::atomic<const void*> owner_{nullptr};
  Numbers owned_;
  std::atomic<int64_t> peak_{0};
  alignas(64) Numbers shared_;
};

// The counts for all indices of one device type. A storage points to the counts it is part of and can outlive the mode
// it was created in: so counts are never freed, but reused once none of their storages is alive.
class StorageCounts {
 public:
  static StorageCounts* take(c10::DeviceType type);
  // Called when the counts are no longer read.
  static void give_back(StorageCounts* counts);

  // Null for a device of another type.
  DeviceCounts* of(c10::Device device) {
    return device.type() == type_ ? &devices_[static_cast<uint8_t>(device.index()) % kIndices] : nullptr;
  }
  DeviceCounts& operator[](c10::DeviceIndex index) {
    return devices_[static_cast<uint8_t>(index) % kIndices];
  }

  // The number of bytes that PyTorch's allocator hands out for `nbytes`, at least.
  static int64_t rounded(size_t nbytes) {
    constexpr size_t kBlock = 512;
    return static_cast<int64_t>((nbytes + kBlock - 1) / kBlock * kBlock);
  }

 private:
  static constexpr size_t kIndices = 128;  // the number of indices a device can have

  bool is_idle() const;

  c10::DeviceType type_ = c10::kCPU;
  std::array<DeviceCounts, kIndices> devices_;
};

}  // namespace torchfake
