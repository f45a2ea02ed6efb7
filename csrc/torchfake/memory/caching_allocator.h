// A model of PyTorch's caching allocator on one device: the blocks and segments that a program's allocations take.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <torchfake/memory/allocator_config.h>
#include <torchfake/memory/allocator_stats.h>
#include <torchfake/memory/device_memory.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace torchfake::memory {

// Note [The allocator model]
//
// Given the same calls as c10::cuda::CUDACachingAllocator, the model takes the same blocks of the same segments; tests
// compare it with recordings of a real card, event by event. What it does:
//
//   - A size is rounded up to 512 bytes, or to a division of a power of two. Sizes up to 1 MiB belong to the small
//     pool, larger ones to the large pool. Pools hold free blocks ordered by stream, size, and age or address: the
//     first that is large enough is taken, and split if the rest is worth keeping.
//   - If there is none, a segment is allocated from the card: 2 MiB for the small pool, 20 MiB for sizes below 10 MiB,
//     otherwise the size rounded to 2 MiB. With expandable segments, memory is mapped at the end of the stream's only
//     segment instead.
//   - If the card refuses, cached segments are returned and the request is repeated; after that the call fails with an
//     out-of-memory error.
//   - A freed block merges with free neighbours in its segment. A block used by another stream becomes free once that
//     stream's work is done. The model has no kernels that take time: the work is done by the next allocation.

struct Block;
struct BlockPool;
struct PrivatePool;
struct Segment;

// Objects that are created and deleted often, with stable addresses. `Item` must be default-constructible.
template <typename Item>
class Slab {
 public:
  Item* make() {
    if (spare_.empty()) {
      return &items_.emplace_back();
    }
    Item* item = spare_.back();
    spare_.pop_back();
    return item;
  }
  // The item is reset, so that it can be told from existing ones.
  void drop(Item* item) {
    *item = Item{};
    spare_.push_back(item);
  }
  // All items, existing and dropped.
  std::deque<Item>& all() {
    return items_;
  }
  const std::deque<Item>& all() const {
    return items_;
  }

 private:
  std::deque<Item> items_;
  std::vector<Item*> spare_;
};

struct BlockInfo {
  uint64_t address = 0;
  size_t size = 0;
  size_t requested_size = 0;
  bool is_allocated = false;
  bool is_active = false;  // allocated, or waiting for a stream
};

// A contiguous range of the card's memory.
struct SegmentInfo {
  uint64_t address = 0;
  size_t total_size = 0;
  size_t requested_size = 0;
  size_t allocated_size = 0;
  size_t active_size = 0;
  c10::StreamId stream = 0;
  bool is_large = false;
  bool is_expandable = false;
  PoolId pool;
  std::vector<BlockInfo> blocks;
};

struct TraceEntry {
  enum class Action : uint8_t {
    kAlloc,
    kFreeRequested,
    kFreeCompleted,
    kSegmentAlloc,
    kSegmentFree,
    kSegmentMap,
    kSegmentUnmap,
    kOutOfMemory,
  };
  Action action = Action::kAlloc;
  uint64_t address = 0;  // for kOutOfMemory: the free bytes of the card
  size_t size = 0;
  c10::StreamId stream = 0;
  PoolId pool;
};

// PyTorch's name of an action in snapshots: "segment_alloc".
const char* to_string(TraceEntry::Action action);

// Thread-safe. Blocks are valid until freed.
class CachingAllocator {
 public:
  // `memory` must outlive it.
  CachingAllocator(AllocatorConfig config, DeviceMemory& memory, c10::DeviceIndex device = 0);
  ~CachingAllocator();
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;
  CachingAllocator(CachingAllocator&&) = delete;
  CachingAllocator& operator=(CachingAllocator&&) = delete;

  // Throws c10::OutOfMemoryError with PyTorch's message.
  Block* allocate(size_t nbytes, c10::StreamId stream);
  void free(Block* block);
  // Marks the block as used by `stream`: once freed, it waits for that stream.
  void record_stream(Block* block, c10::StreamId stream);

  // Until the scope ends, allocations of all streams come from `pool`, which is created if it does not exist. Nests.
  void begin_pool_scope(PoolId pool);
  void end_pool_scope();
  // Declares that no more allocations will use the pool: empty_cache() may release its memory.
  void release_pool(PoolId pool);

  // Returns segments without blocks in use to the card.
  void empty_cache();
  // Limits the share of the card's memory, in [0, 1]; 1 removes the limit. Throws c10::Error for other values.
  void set_memory_fraction(double fraction);
  double memory_fraction() const;
  // Applies to later allocations. The release is unchanged.
  void set_config(AllocatorConfig config);
  AllocatorConfig config() const;

  DeviceStats stats() const;
  void reset_peak_stats();
  void reset_accumulated_stats();
  int64_t allocated_bytes() const;
  int64_t reserved_bytes() const;
  // Ordered by address.
  std::vector<SegmentInfo> snapshot() const;
  // Calls `f` with every block in use, under the allocator's lock.
  void for_each_allocated(const std::function<void(Block&)>& f);
  // The size of a block, which may exceed the requested size, and its address.
  static size_t block_size(const Block* block);
  static uint64_t block_address(const Block* block);

  // Called for every event, under the allocator's lock; null removes it.
  void set_trace(std::function<void(const TraceEntry&)> trace);

 private:
  struct Request;

  void refuse_early(const Request& request);
  Block* find_free(Request& request);
  Block* new_segment(Request& request, bool is_retry);
  Block* expand_segment(Request& request);
  Block* find_expandable(Request& request);
  bool map(Block* block, size_t nbytes);
  void unmap(Block* block);
  Block* hand_out(const Request& request, Block* block);
  void take_back(Block* block);
  size_t merge(Block* block, Block* neighbour);

  BlockPool& pool_for(size_t size);
  size_t rounded(size_t nbytes) const;
  size_t segment_size(size_t size) const;
  bool should_split(const Request& request, const Block* block) const;
  bool is_capturing() const;

  void record_events(Block* block);
  void process_events();
  void synchronize_events();
  void collect_garbage();
  bool release_oversized(Request& request);
  bool release_cached();
  void release_blocks(BlockPool& pool);
  void release(Block* block);
  void count_reserved(const BlockPool& pool, size_t nbytes, bool is_more);
  [[noreturn]] void throw_out_of_memory(const Request& request);
  void trace(TraceEntry::Action action, const Block& block, uint64_t address, size_t size) const;

  Segment* new_segment_record(BlockPool& pool, c10::StreamId stream);
  Block* new_block(Segment* segment);

  mutable std::mutex mutex_;
  AllocatorConfig config_;
  DeviceMemory& memory_;
  const c10::DeviceIndex device_;
  std::optional<size_t> limit_;  // set_memory_fraction
  size_t total_ = 0;  // size of all segments
  int32_t registrations_ = 0;
  DeviceStats stats_;
  std::unique_ptr<BlockPool> small_;
  std::unique_ptr<BlockPool> large_;
  std::map<PoolId, std::unique_ptr<PrivatePool>> private_pools_;
  std::vector<PoolId> scopes_;
  std::vector<std::pair<c10::StreamId, Block*>> events_;  // in the order of recording
  std::vector<Block*> deferred_;  // freed during a graph capture
  Slab<Block> blocks_;
  Slab<Segment> segments_;
  std::map<const Block*, std::set<c10::StreamId>> stream_uses_;  // other streams that use a block
  std::function<void(const TraceEntry&)> trace_;
};

}  // namespace torchfake::memory
