// The allocation interface: observers are told about the memory that fakes would take, and may refuse it.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <torchfake/core/scoped.h>

#include <cstdint>
#include <memory>
#include <string_view>

namespace torchfake {

class DirectObserver;
class StorageCounts;

// A storage about to be allocated or resized.
struct Allocation {
  const void* id = nullptr;  // identifies the storage until it is freed; null for a kernel's temporary memory
  c10::Device device{c10::kCPU};
  c10::StreamId stream = 0;  // the device's current stream
  size_t nbytes = 0;
  std::string_view op;  // the allocating operator: "aten::add"; empty outside of one. Lives as long as the process
};

// Is notified about every fake storage of a mode; the memory model is built on it. Called on the thread that creates,
// resizes or drops the storage. Must not run tensor operators.
class StorageObserver {
 public:
  virtual ~StorageObserver() = default;

  // May throw to refuse the allocation (c10::OutOfMemoryError). The call then fails with that error, and none of its
  // arguments has changed.
  virtual void on_alloc(const Allocation& allocation) = 0;
  virtual void on_resize(const Allocation& allocation, size_t old_nbytes) = 0;

  virtual void on_free(const void* id, c10::Device device, size_t nbytes) noexcept = 0;

  // For an observer that only counts: the counters that storages update directly instead of calling it. Null for any
  // other observer. A counting observer never refuses an allocation.
  StorageCounts* counts() const {
    return counts_;
  }

  // Where storages on accelerators that can hold a word report themselves, instead of to this observer.
  struct Direct {
    DirectObserver* observer = nullptr;  // null if there is no such place
    StorageCounts* counts = nullptr;  // counters to update as well, or null
  };
  const Direct& direct() const {
    return direct_;
  }

 protected:
  StorageObserver() = default;
  explicit StorageObserver(StorageCounts* counts) : counts_(counts) {}
  explicit StorageObserver(Direct direct) : direct_(direct) {}

 private:
  StorageCounts* const counts_ = nullptr;
  const Direct direct_;
};

// An observer that has a word in each storage on an accelerator, which needs neither a context nor a place in a table
// then. Storages that cannot hold a word, such as those that a kernel creates, are reported as to any other observer.
// Must stay alive while a storage has a word of it.
class DirectObserver : public StorageObserver, public std::enable_shared_from_this<DirectObserver> {
 public:
  // Returns the word of storage `allocation.id`, which is not 0. Called with at least one byte. May throw like on_alloc().
  virtual uintptr_t on_direct_alloc(const Allocation& allocation) = 0;
  virtual void on_direct_free(uintptr_t word) noexcept = 0;
  // The number of bytes that were reported.
  virtual size_t direct_nbytes(uintptr_t word) const = 0;

 protected:
  DirectObserver() : StorageObserver(Direct{this, nullptr}) {}
};

// While alive, allocations on this thread are attributed to operator `op`, whose name must live as long as the process.
class AllocatingOperator : Scoped<std::string_view> {
 public:
  explicit AllocatingOperator(std::string_view op);

  static std::string_view current();
};

// An allocation of `nbytes` on `device` by the running operator, on the current stream.
Allocation allocation_of(const void* id, c10::Device device, size_t nbytes);

}  // namespace torchfake
