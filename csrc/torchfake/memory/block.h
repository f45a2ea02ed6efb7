// The building blocks of the allocator model: blocks, pools of free blocks, and expandable segments.
#pragma once

#include <torchfake/memory/caching_allocator.h>

#include <tuple>

namespace torchfake::memory {

// A range of a segment. The blocks of a segment form a list, ordered by address.
struct Block {
  uint64_t address = 0;
  size_t size = 0;
  size_t requested_size = 0;
  Block* prev = nullptr;
  Block* next = nullptr;
  BlockPool* pool = nullptr;
  c10::StreamId stream = 0;
  ExpandableSegment* expandable = nullptr;
  // Other streams that use it; null if there are none, which is the common case.
  std::unique_ptr<std::set<c10::StreamId>> stream_uses;
  int64_t age_base = 0;  // the pool's search count when it became free
  int32_t registration = 0;  // a counter of segments
  int32_t event_count = 0;
  bool is_allocated = false;
  bool is_mapped = true;  // false for address space of an expandable segment without memory

  bool is_split() const {
    return prev != nullptr || next != nullptr;
  }
  bool is_used_elsewhere() const {
    return stream_uses != nullptr && !stream_uses->empty();
  }
  bool is_free() const {
    return !is_allocated && event_count == 0 && !is_used_elsewhere();
  }
  void insert_between(Block* before, Block* after) {
    prev = before;
    next = after;
    if (before != nullptr) {
      before->next = this;
    }
    if (after != nullptr) {
      after->prev = this;
    }
  }
};

struct BySize {
  bool prefers_older = true;

  bool operator()(const Block* a, const Block* b) const {
    if (a->stream != b->stream) {
      return static_cast<uint64_t>(a->stream) < static_cast<uint64_t>(b->stream);
    }
    if (a->size != b->size) {
      return a->size < b->size;
    }
    if (prefers_older && a->registration != b->registration) {
      return a->registration < b->registration;
    }
    return a->address < b->address;
  }
};

struct ByAddress {
  bool operator()(const Block* a, const Block* b) const {
    return std::tuple(static_cast<uint64_t>(a->stream), a->address) <
        std::tuple(static_cast<uint64_t>(b->stream), b->address);
  }
};

struct BlockPool {
  BlockPool(bool small, bool prefers_older, PrivatePool* owner_pool)
      : free(BySize{prefers_older}), is_small(small), owner(owner_pool) {}

  using Free = std::set<Block*, BySize>;

  Free free;
  Free::node_type spare_node;
  std::set<Block*, ByAddress> unmapped;
  const bool is_small;
  PrivatePool* const owner;  // null for the default pools
  int64_t searches = 0;

  void insert(Block* block) {
    block->age_base = searches;
    if (spare_node.empty()) {
      free.insert(block);
    } else {
      spare_node.value() = block;
      free.insert(std::move(spare_node));
    }
  }
  // A block that is taken is usually split and its rest reinserted, with the same node.
  void take(Free::iterator at) {
    spare_node = free.extract(at);
  }
  int64_t age(const Block* block) const {
    return searches - block->age_base;
  }
  PoolId id() const;
};

// The pools of a graph or of torch.cuda.MemPool.
struct PrivatePool {
  PrivatePool(PoolId pool_id, bool prefers_older)
      : id(pool_id), small(true, prefers_older, this), large(false, prefers_older, this) {}

  const PoolId id;
  int64_t segments = 0;
  bool is_released = false;
  BlockPool small;
  BlockPool large;
};

inline PoolId BlockPool::id() const {
  return owner == nullptr ? PoolId{} : owner->id;
}

// Address space into which memory is mapped in pages of `page` bytes.
struct ExpandableSegment {
  uint64_t address = 0;
  size_t size = 0;
  size_t page = 0;

  uint64_t page_below(uint64_t at) const {
    return address + (at - address) / page * page;
  }
  uint64_t page_above(uint64_t at) const {
    return address + (at - address + page - 1) / page * page;
  }
};

}  // namespace torchfake::memory
