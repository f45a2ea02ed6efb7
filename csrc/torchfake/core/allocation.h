// The allocation interface: who hears of the memory that fakes would take, and may refuse it.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <torchfake/core/scoped.h>

#include <string_view>

namespace torchfake {

class StorageCounts;

// A storage that is to be allocated, or to get another size.
struct Allocation {
  const void* id = nullptr;  // names the storage until it is freed; null for memory that a kernel takes while it runs
  c10::Device device{c10::kCPU};
  c10::StreamId stream = 0;  // the current one of the device
  size_t nbytes = 0;
  std::string_view op;  // the operator that asks: "aten::add". Empty outside of one. Valid as long as the process
};

// Hears of every fake storage of a mode: a memory model is built on it. Called on the thread that creates, resizes or
// drops the storage. Must not run tensor operators.
class StorageObserver {
 public:
  virtual ~StorageObserver() = default;

  // May throw to refuse the memory (c10::OutOfMemoryError). The call then ends with that error, and no argument of it has
  // changed.
  virtual void on_alloc(const Allocation& allocation) = 0;
  virtual void on_resize(const Allocation& allocation, size_t old_nbytes) = 0;

  virtual void on_free(const void* id, c10::Device device, size_t nbytes) noexcept = 0;

  // Where it only counts, what storages may add themselves to without calling it; null for any other observer. Such an
  // observer refuses nothing.
  StorageCounts* counts() const {
    return counts_;
  }

 protected:
  StorageObserver() = default;
  explicit StorageObserver(StorageCounts* counts) : counts_(counts) {}

 private:
  StorageCounts* const counts_ = nullptr;
};

// While one lives, allocations of this thread are those of operator `op`, whose name lives as long as the process.
class AllocatingOperator : Scoped<std::string_view> {
 public:
  explicit AllocatingOperator(std::string_view op);

  static std::string_view current();
};

// The allocation of `nbytes` on `device` by the operator that runs, on the current stream.
Allocation allocation_of(const void* id, c10::Device device, size_t nbytes);

}  // namespace torchfake
