// The building blocks of the allocator model: segments, blocks, and pools of free blocks.
#pragma once

#include <torchfake/memory/caching_allocator.h>

#include <tuple>

namespace torchfake::memory {

// Memory that was allocated from the card at once, or an expandable segment: address space into which memory is mapped in
// pages. What all of its blocks have in common.
struct Segment {
  BlockPool* pool = nullptr;
  c10::StreamId stream = 0;
  int32_t registration = 0;  // a counter of segments
  // Of expandable segments.
  uint64_t address = 0;
  size_t size = 0;
  size_t page = 0;  // 0 for all others

  bool is_expandable() const {
    return page != 0;
  }
  uint64_t page_below(uint64_t at) const {
    return address + (at - address) / page * page;
  }
  uint64_t page_above(uint64_t at) const {
    return address + (at - address + page - 1) / page * page;
  }
};

// A range of a segment. The blocks of a segment form a list, ordered by address. There is one for every live storage, so
// its size matters.
struct Block {
  Segment* segment = nullptr;  // null for a deleted block
  uint64_t address = 0;
  size_t size = 0;
  size_t requested_size = 0;
  Block* prev = nullptr;
  Block* next = nullptr;
  union {
    int64_t age_base = 0;  // of a free block: the pool's search count when it became free
    const void* storage;  // of an allocated one: the storage it belongs to, or null
  };
  uint32_t record = 0;  // the ledger's number, if there is a ledger
  int16_t event_count = 0;
  bool is_allocated : 1 = false;
  bool is_mapped : 1 = true;  // false for address space of an expandable segment without memory
  bool is_used_elsewhere : 1 = false;  // by other streams, which the allocator knows

  BlockPool& pool() const {
    return *segment->pool;
  }
  c10::StreamId stream() const {
    return segment->stream;
  }
  bool is_split() const {
    return prev != nullptr || next != nullptr;
  }
  bool is_free() const {
    return !is_allocated && event_count == 0 && !is_used_elsewhere;
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
static_assert(sizeof(Block) == 64);

struct BySize {
  bool prefers_older = true;

  bool operator()(const Block* a, const Block* b) const {
    if (a->stream() != b->stream()) {
      return static_cast<uint64_t>(a->stream()) < static_cast<uint64_t>(b->stream());
    }
    if (a->size != b->size) {
      return a->size < b->size;
    }
    if (prefers_older && a->segment->registration != b->segment->registration) {
      return a->segment->registration < b->segment->registration;
    }
    return a->address < b->address;
  }
};

struct ByAddress {
  bool operator()(const Block* a, const Block* b) const {
    return std::tuple(static_cast<uint64_t>(a->stream()), a->address) <
        std::tuple(static_cast<uint64_t>(b->stream()), b->address);
  }
};

struct BlockPool {
  BlockPool(CachingAllocator& of, bool small, bool prefers_older, PrivatePool* owner_pool = nullptr)
      : allocator(of), free(BySize{prefers_older}), is_small(small), owner(owner_pool) {}

  using Free = std::set<Block*, BySize>;

  CachingAllocator& allocator;
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
  PrivatePool(CachingAllocator& allocator, PoolId pool_id, bool prefers_older)
      : id(pool_id), small(allocator, true, prefers_older, this), large(allocator, false, prefers_older, this) {}

  const PoolId id;
  int64_t segments = 0;
  bool is_released = false;
  BlockPool small;
  BlockPool large;
};

inline PoolId BlockPool::id() const {
  return owner == nullptr ? PoolId{} : owner->id;
}

}  // namespace torchfake::memory
