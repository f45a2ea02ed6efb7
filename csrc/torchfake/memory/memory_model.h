// The memory of a mode's devices: an allocator per card, fed by the storages of fakes.
#pragma once

#include <c10/util/flat_hash_map.h>

#include <torchfake/core/allocation.h>
#include <torchfake/core/collective_observer.h>
#include <torchfake/core/fake_storage.h>
#include <torchfake/memory/caching_allocator.h>
#include <torchfake/memory/history.h>
#include <torchfake/memory/ledger.h>
#include <torchfake/memory/operator_memory.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>

namespace torchfake::memory {

// The properties of a card that the model needs.
struct Card {
  size_t total_bytes = size_t{80} << 30;
  int capability_major = 9;
  // Memory in use before the first allocation: the CUDA context. Recorded on an H200 with driver 580, CUDA 13.
  size_t context_bytes = size_t{621} << 20;
  bool is_unlimited = false;  // continues past the card's size
};

// Host memory, which PyTorch's allocators do not cache.
struct HostBytes {
  int64_t current = 0;
  int64_t peak = 0;
};

// Thread-safe. Devices are created when they are first claimed, all with the same card.
class MemoryModel final : public DirectObserver, public CollectiveObserver {
 public:
  explicit MemoryModel(Card card, AllocatorConfig config = {});
  ~MemoryModel() override;

  // Throws c10::OutOfMemoryError if the card is full.
  void on_alloc(const Allocation& allocation) override;
  void on_resize(const Allocation& allocation, size_t old_nbytes) override;
  void on_free(const void* id, c10::Device device, size_t nbytes) noexcept override;
  uintptr_t on_direct_alloc(const Allocation& allocation) override;
  void on_direct_free(uintptr_t word) noexcept override;
  size_t direct_nbytes(uintptr_t word) const override;
  void on_collective(const void* id) noexcept override;

  // Marks the storage as used by `stream`: see CachingAllocator::record_stream.
  void record_stream(const Observation& storage, c10::StreamId stream);
  // Allocates a buffer that `device` has once and keeps, unless it has it.
  void keep_buffer(Workspace which, c10::Device device, size_t nbytes);
  // Releases the workspaces of libraries, like torch._C._cuda_clearCublasWorkspaces().
  void clear_workspaces();

  CachingAllocator& allocator(c10::Device device);
  // The devices that have had memory, by index.
  std::vector<c10::Device> devices() const;
  // Sets the options for later allocations on all devices. Throws c10::ValueError like PyTorch.
  void set_config(std::string_view text);

  // Starts recording events; std::nullopt stops. Recorded events are kept until the next start or `clear`.
  void set_history(std::optional<HistoryOptions> options, bool clear);
  // Calls `f` with the history of a device, or null, under the lock of its allocator. `f` must not call the model.
  void with_history(c10::Device device, const std::function<void(const History*)>& f);

  // Free and total bytes, as from cudaMemGetInfo.
  std::pair<size_t, size_t> memory_info(c10::Device device);
  HostBytes host_bytes() const;
  const Card& card() const {
    return card_;
  }

  // Records every block from here on in `ledger`; null stops. Existing blocks are added first, workspaces as such and all
  // others as inputs.
  void set_ledger(std::shared_ptr<Ledger> ledger);
  std::shared_ptr<Ledger> ledger() const;

 private:
  struct Device;

  Device& device_of(c10::Device device);
  Block* take(Device& device, const Allocation& allocation, Owner owner);
  Block* take_for_storage(const Allocation& allocation);
  void give_back(Block* block) noexcept;
  // The line source may wait for another lock (Python's), whose holder may be waiting for ours.
  void note_line() const;
  std::optional<GatheredStack> gathered_stack() const;
  void take_workspaces(Device& device, const Allocation& allocation);
  size_t blas_workspace_bytes() const;
  void attach_history(Device& device);
  std::function<StackPtr()> gatherer() const;
  static Owner owner_of(const Allocation& allocation);

  const Card card_;
  AllocatorConfig config_;
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Device>> devices_;
  ska::flat_hash_map<const void*, Block*> blocks_;  // of storages without a word
  size_t words_ = 0;  // the number of storages with one
  std::shared_ptr<DirectObserver> self_;  // while there are such storages
  ska::flat_hash_map<const char*, Workspace> workspaces_of_operators_;
  HostBytes host_;
  std::shared_ptr<Ledger> ledger_;
  std::atomic<const LineSource*> line_source_{nullptr};  // the ledger's, for use before the lock is taken
  std::shared_ptr<const HistoryOptions> history_;  // non-null while events are recorded
  std::atomic<bool> has_history_{false};
  int last_backward_ = -1;
};

}  // namespace torchfake::memory
