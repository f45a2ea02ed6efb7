// A model of PyTorch's caching allocator on one device.
#include <torchfake/memory/caching_allocator.h>

#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>

#include <torchfake/memory/block.h>

#include <algorithm>
#include <bit>
#include <cmath>

namespace torchfake::memory {

namespace {

using Action = TraceEntry::Action;

constexpr size_t kMinBlock = 512;
constexpr size_t kSmallSize = kMiB;  // what is larger belongs to the large pool
constexpr size_t kSmallSegment = 2 * kMiB;
constexpr size_t kMinLarge = 10 * kMiB;  // from here on a segment is made to measure
constexpr size_t kRoundLarge = 2 * kMiB;

size_t round_up(size_t size, size_t multiple) {
  return (size + multiple - 1) / multiple * multiple;
}

// The next of `divisions` equal steps between two powers of two.
size_t round_to_division(size_t size, size_t divisions) {
  if (std::has_single_bit(size)) {
    return size;
  }
  const size_t floor = std::bit_floor(size);
  const size_t step = floor >> (std::bit_width(divisions) - 1);
  return step == 0 ? floor << 1 : (size + step - 1) & ~(step - 1);
}

// What a free block could grow to.
size_t size_with_room(const Block* block) {
  return block->size + (block->next != nullptr && !block->next->is_mapped ? block->next->size : 0);
}

}  // namespace

const char* to_string(TraceEntry::Action action) {
  switch (action) {
    case Action::kAlloc:
      return "alloc";
    case Action::kFreeRequested:
      return "free_requested";
    case Action::kFreeCompleted:
      return "free_completed";
    case Action::kSegmentAlloc:
      return "segment_alloc";
    case Action::kSegmentFree:
      return "segment_free";
    case Action::kSegmentMap:
      return "segment_map";
    case Action::kSegmentUnmap:
      return "segment_unmap";
    case Action::kOutOfMemory:
      return "oom";
  }
  TORCH_INTERNAL_ASSERT(false);
}

struct CachingAllocator::Request {
  size_t requested = 0;
  size_t size = 0;  // rounded
  size_t segment = 0;  // of a new segment
  c10::StreamId stream = 0;
  BlockPool* pool = nullptr;
  bool expandable = false;

  Block key() const {
    Block block;
    block.stream = stream;
    block.size = size;
    block.registration = -1;
    return block;
  }
};

CachingAllocator::CachingAllocator(AllocatorConfig config, DeviceMemory& memory, c10::DeviceIndex device)
    : config_(std::move(config)),
      memory_(memory),
      device_(device),
      small_(std::make_unique<BlockPool>(true, config_.release.prefers_older_segments(), nullptr)),
      large_(std::make_unique<BlockPool>(false, config_.release.prefers_older_segments(), nullptr)) {
  if (config_.per_process_memory_fraction < 1) {
    set_memory_fraction(config_.per_process_memory_fraction);
  }
}

CachingAllocator::~CachingAllocator() = default;

template <typename F>
void CachingAllocator::for_each_block(F&& f) const {
  for (const std::unique_ptr<Block>& block : blocks_) {
    if (block->pool != nullptr) {
      f(block.get());
    }
  }
}

Block* CachingAllocator::new_block(const Block& like) {
  Block* block = nullptr;
  if (spare_.empty()) {
    block = blocks_.emplace_back(std::make_unique<Block>()).get();
  } else {
    block = spare_.back();
    spare_.pop_back();
    *block = Block{};
  }
  block->pool = like.pool;
  block->stream = like.stream;
  block->expandable = like.expandable;
  block->registration = like.registration;
  return block;
}

void CachingAllocator::delete_block(Block* block) {
  block->pool = nullptr;
  spare_.push_back(block);
}

void CachingAllocator::trace(Action action, const Block& block, uint64_t address, size_t size) const {
  if (C10_UNLIKELY(static_cast<bool>(trace_))) {
    trace_({action, address, size, block.stream, block.pool->id()});
  }
}

// ---- Sizes

size_t CachingAllocator::rounded(size_t nbytes) const {
  if (nbytes < kMinBlock) {
    return kMinBlock;
  }
  const size_t divisions = config_.divisions_for(nbytes);
  if (divisions > 1 && nbytes > kMinBlock * divisions) {
    return round_to_division(nbytes, divisions);
  }
  return round_up(nbytes, kMinBlock);
}

size_t CachingAllocator::segment_size(size_t size) const {
  if (size <= kSmallSize) {
    return kSmallSegment;
  }
  return size < kMinLarge ? config_.large_segment_size : round_up(size, kRoundLarge);
}

BlockPool& CachingAllocator::pool_for(size_t size) {
  const bool is_small = size <= kSmallSize;
  if (C10_LIKELY(scopes_.empty())) {
    return is_small ? *small_ : *large_;
  }
  PrivatePool& pool = *private_pools_.at(scopes_.back());
  return is_small ? pool.small : pool.large;
}

bool CachingAllocator::should_split(const Request& request, const Block* block) const {
  const size_t rest = block->size - request.size;
  if (block->pool->is_small || request.expandable) {
    return rest >= kMinBlock;
  }
  return request.size < config_.max_split_size && rest > kSmallSize;
}

bool CachingAllocator::is_capturing() const {
  return !scopes_.empty() && config_.release.pool_scope_is_capture();
}

// ---- Allocation

Block* CachingAllocator::allocate(size_t nbytes, c10::StreamId stream) {
  const std::lock_guard lock(mutex_);
  if (!is_capturing()) {
    process_events();
  }
  Request request;
  request.requested = nbytes;
  request.size = rounded(nbytes);
  request.segment = segment_size(request.size);
  request.stream = stream;
  request.pool = &pool_for(request.size);
  request.expandable = config_.expandable_segments;

  Block* block = find_free(request);
  if (block == nullptr) {
    if (limit_ && config_.garbage_collection_threshold > 0) {
      collect_garbage();
    }
    block = new_segment(request, /*is_retry=*/false);
  }
  if (block == nullptr && release_oversized(request)) {
    block = new_segment(request, /*is_retry=*/false);
  }
  if (block == nullptr && !is_capturing() && release_cached()) {
    block = new_segment(request, /*is_retry=*/true);
  }
  if (block == nullptr) {
    throw_out_of_memory(request);
  }
  return hand_out(request, block);
}

Block* CachingAllocator::find_free(Request& request) {
  BlockPool& pool = *request.pool;
  if (limit_ && config_.garbage_collection_threshold > 0) {
    ++pool.searches;
  }
  Block key = request.key();
  auto found = pool.free.lower_bound(&key);
  const auto is_ours = [&](auto at) { return at != pool.free.end() && (*at)->stream == request.stream; };
  if (!is_ours(found)) {
    return nullptr;
  }
  if ((*found)->expandable != nullptr) {
    if (request.expandable) {
      // A block that can grow counts as large as it can become: a larger one that cannot grow that far fits better.
      for (auto next = std::next(found);
           (*found)->expandable != nullptr && is_ours(next) && size_with_room(*next) < size_with_room(*found);
           ++next) {
        found = next;
      }
    } else {
      while (is_ours(found) && (*found)->expandable != nullptr) {
        ++found;
      }
      if (!is_ours(found)) {
        return nullptr;
      }
    }
  }
  Block* block = *found;
  const bool is_oversized = request.size >= config_.max_split_size;
  if (!is_oversized && block->size >= config_.max_split_size) {
    return nullptr;
  }
  if (is_oversized && block->size >= request.size + config_.max_non_split_rounding_size) {
    return nullptr;
  }
  pool.take(found);
  return block;
}

Block* CachingAllocator::new_segment(Request& request, bool is_retry) {
  if (is_retry) {
    ++stats_.num_alloc_retries;
  }
  if (limit_ && total_ + request.segment > *limit_) {
    return nullptr;
  }
  BlockPool& pool = *request.pool;
  if (request.expandable) {
    Block* block = expand_segment(request);
    if (block != nullptr && pool.owner != nullptr) {
      ++pool.owner->segments;
    }
    return block;
  }
  const auto address = memory_.allocate(request.segment);
  if (!address) {
    return nullptr;
  }
  if (pool.owner != nullptr) {
    ++pool.owner->segments;
  }
  Block like;
  like.pool = &pool;
  like.stream = request.stream;
  like.registration = registrations_++;
  Block* block = new_block(like);
  block->address = *address;
  block->size = request.segment;
  total_ += block->size;
  stats_.segment.increase(pool.is_small, 1);
  count_reserved(pool, block->size, /*is_more=*/true);
  if (block->size >= config_.max_split_size) {
    stats_.oversize_segments.increase(1);
  }
  ++stats_.num_device_alloc;
  trace(Action::kSegmentAlloc, *block, block->address, block->size);
  return block;
}

Block* CachingAllocator::hand_out(const Request& request, Block* block) {
  BlockPool& pool = *request.pool;
  const bool was_split = block->is_split();
  if (should_split(request, block)) {
    Block* rest = block;
    block = new_block(*rest);
    block->pool = &pool;
    block->address = rest->address;
    block->size = request.size;
    block->insert_between(rest->prev, rest);
    rest->address += request.size;
    rest->size -= request.size;
    pool.insert(rest);
    if (block->expandable == nullptr) {
      if (was_split) {
        stats_.inactive_split_bytes.decrease(pool.is_small, block->size);
      } else {
        stats_.inactive_split_bytes.increase(pool.is_small, rest->size);
        stats_.inactive_split.increase(pool.is_small, 1);
      }
    }
  } else if (was_split && block->expandable == nullptr) {
    stats_.inactive_split_bytes.decrease(pool.is_small, block->size);
    stats_.inactive_split.decrease(pool.is_small, 1);
  }
  block->is_allocated = true;
  block->requested_size = request.requested;
  trace(Action::kAlloc, *block, block->address, block->requested_size);
  stats_.allocation.increase(pool.is_small, 1);
  stats_.allocated_bytes.increase(pool.is_small, block->size);
  stats_.active.increase(pool.is_small, 1);
  stats_.active_bytes.increase(pool.is_small, block->size);
  stats_.requested_bytes.increase(pool.is_small, block->requested_size);
  if (block->size >= config_.max_split_size) {
    stats_.oversize_allocations.increase(1);
  }
  return block;
}

// ---- Expandable segments

Block* CachingAllocator::find_expandable(const Request& request) {
  BlockPool& pool = *request.pool;
  const auto has_room = [&](const Block* block) {
    size_t bytes = 0;
    for (; bytes < request.size && block != nullptr && block->is_free(); block = block->next) {
      bytes += block->size;
    }
    return bytes >= request.size;
  };
  Block key = request.key();
  key.address = 0;
  for (auto it = pool.unmapped.lower_bound(&key); it != pool.unmapped.end() && (*it)->stream == request.stream; ++it) {
    Block* block = *it;
    if (block->prev != nullptr && block->prev->is_free()) {
      block = block->prev;
    }
    if (has_room(block)) {
      return block;
    }
  }
  auto segment = std::make_unique<ExpandableSegment>();
  segment->page = pool.is_small ? kSmallSegment : config_.large_segment_size;
  // An eighth more than the card has: memory may have to be mapped further up.
  segment->size = round_up(memory_.total_bytes() + memory_.total_bytes() / 8, segment->page);
  segment->address = memory_.reserve_addresses(segment->size);
  Block like;
  like.pool = &pool;
  like.stream = request.stream;
  like.expandable = segment.get();
  like.registration = registrations_++;
  Block* block = new_block(like);
  block->address = segment->address;
  block->size = segment->size;
  block->is_mapped = false;
  expandable_.push_back(std::move(segment));
  pool.unmapped.insert(block);
  return block;
}

Block* CachingAllocator::expand_segment(Request& request) {
  Block* block = find_expandable(request);
  if (!block->is_mapped && !map(block, std::min(block->size, request.size))) {
    return nullptr;
  }
  while (block->size < request.size) {
    // The next one is unmapped; mapping it merges this one into it.
    Block* next = block->next;
    if (!map(next, std::min(request.size - block->size, next->size))) {
      return nullptr;
    }
    block = next;
  }
  request.pool->free.erase(block);
  return block;
}

bool CachingAllocator::map(Block* block, size_t nbytes) {
  BlockPool& pool = *block->pool;
  const size_t size = block->expandable->page_above(block->address + nbytes) - block->address;
  if (!memory_.map(block->address, size)) {
    return false;
  }
  pool.unmapped.erase(block);
  block->is_mapped = true;
  const uint64_t address = block->address;
  if (size < block->size) {
    Block* rest = new_block(*block);
    rest->address = block->address + size;
    rest->size = block->size - size;
    rest->is_mapped = false;
    rest->insert_between(block, block->next);
    pool.unmapped.insert(rest);
    block->size = size;
  }
  merge(block, block->prev);
  merge(block, block->next);
  pool.insert(block);
  total_ += size;
  count_reserved(pool, size, /*is_more=*/true);
  ++stats_.num_device_alloc;
  trace(Action::kSegmentMap, *block, address, size);
  return true;
}

void CachingAllocator::unmap(Block* block) {
  BlockPool& pool = *block->pool;
  const uint64_t end_of_block = block->address + block->size;
  const uint64_t begin = block->expandable->page_above(block->address);
  const uint64_t end = block->expandable->page_below(end_of_block);
  if (begin >= end) {
    return;
  }
  memory_.unmap(begin, end - begin);
  pool.free.erase(block);
  if (begin > block->address) {
    Block* before = new_block(*block);
    before->address = block->address;
    before->size = begin - block->address;
    before->insert_between(block->prev, block);
    pool.insert(before);
  }
  if (end < end_of_block) {
    Block* after = new_block(*block);
    after->address = end;
    after->size = end_of_block - end;
    after->insert_between(block, block->next);
    pool.insert(after);
  }
  block->address = begin;
  block->size = end - begin;
  block->is_mapped = false;
  merge(block, block->prev);
  merge(block, block->next);
  pool.unmapped.insert(block);
  total_ -= end - begin;
  count_reserved(pool, end - begin, /*is_more=*/false);
  if (pool.owner != nullptr) {
    --pool.owner->segments;
  }
  ++stats_.num_device_free;
  trace(Action::kSegmentUnmap, *block, begin, end - begin);
}

// ---- Freeing

void CachingAllocator::free(Block* block) {
  const std::lock_guard lock(mutex_);
  BlockPool& pool = *block->pool;
  block->is_allocated = false;
  stats_.allocation.decrease(pool.is_small, 1);
  stats_.allocated_bytes.decrease(pool.is_small, block->size);
  trace(Action::kFreeRequested, *block, block->address, block->requested_size);
  if (block->size >= config_.max_split_size) {
    stats_.oversize_allocations.decrease(1);
  }
  if (C10_LIKELY(!block->is_used_elsewhere())) {
    take_back(block);
  } else if (is_capturing()) {
    deferred_.push_back(block);
  } else {
    record_events(block);
  }
}

// The block waits for what the streams that use it have been given to do.
void CachingAllocator::record_events(Block* block) {
  const auto streams = std::exchange(block->stream_uses, nullptr);
  for (const c10::StreamId stream : *streams) {
    ++block->event_count;
    events_.emplace_back(stream, block);
  }
}

void CachingAllocator::take_back(Block* block) {
  BlockPool& pool = *block->pool;
  trace(Action::kFreeCompleted, *block, block->address, block->requested_size);
  const size_t size = block->size;
  const size_t requested = block->requested_size;
  int64_t blocks = 0;
  int64_t bytes = 0;
  for (Block* neighbour : {block->prev, block->next}) {
    const size_t merged = merge(block, neighbour);
    blocks -= merged > 0 ? 1 : 0;
    bytes -= static_cast<int64_t>(merged);
  }
  pool.insert(block);
  if (block->is_split()) {
    blocks += 1;
    bytes += static_cast<int64_t>(block->size);
  }
  const auto change = [&](StatArray& stat, int64_t by) {
    if (by > 0) {
      stat.increase(pool.is_small, static_cast<size_t>(by));
    } else if (by < 0) {
      stat.decrease(pool.is_small, static_cast<size_t>(-by));
    }
  };
  if (block->expandable == nullptr) {
    change(stats_.inactive_split, blocks);
    change(stats_.inactive_split_bytes, bytes);
  }
  stats_.active.decrease(pool.is_small, 1);
  stats_.active_bytes.decrease(pool.is_small, size);
  stats_.requested_bytes.decrease(pool.is_small, requested);
}

// Makes one block of `block` and a neighbour that is free, and returns how much that added.
size_t CachingAllocator::merge(Block* block, Block* neighbour) {
  if (neighbour == nullptr || !neighbour->is_free() || block->is_mapped != neighbour->is_mapped) {
    return 0;
  }
  // Before its neighbours change: the sets are ordered by what changes.
  BlockPool& pool = *block->pool;
  if (neighbour->is_mapped) {
    pool.take(pool.free.find(neighbour));
  } else {
    pool.unmapped.erase(neighbour);
  }
  if (block->prev == neighbour) {
    block->address = neighbour->address;
    block->insert_between(neighbour->prev, block->next);
  } else {
    block->insert_between(block->prev, neighbour->next);
  }
  const size_t size = neighbour->size;
  block->size += size;
  delete_block(neighbour);
  return size;
}

void CachingAllocator::record_stream(Block* block, c10::StreamId stream) {
  const std::lock_guard lock(mutex_);
  if (stream == block->stream) {
    return;
  }
  if (block->stream_uses == nullptr) {
    block->stream_uses = std::make_unique<std::set<c10::StreamId>>();
  }
  block->stream_uses->insert(stream);
}

void CachingAllocator::process_events() {
  for (Block* block : std::exchange(deferred_, {})) {
    record_events(block);
  }
  if (C10_LIKELY(events_.empty())) {
    return;
  }
  for (const auto& [stream, block] : std::exchange(events_, {})) {
    if (--block->event_count == 0) {
      take_back(block);
    }
  }
}

void CachingAllocator::synchronize_events() {
  ++stats_.num_sync_all_streams;
  process_events();
}

// ---- Giving memory back to the card

void CachingAllocator::collect_garbage() {
  const auto threshold = static_cast<size_t>(config_.garbage_collection_threshold * static_cast<double>(*limit_));
  if (total_ <= threshold) {
    return;
  }
  const size_t target = total_ - threshold;
  size_t total_age = 0;
  size_t count = 0;
  for (const Block* block : large_->free) {
    if (!block->is_split()) {
      total_age += static_cast<size_t>(large_->age(block));
      ++count;
    }
  }
  size_t reclaimed = 0;
  for (bool has_freed = true; reclaimed < target && has_freed && count > 0;) {
    // Those that have waited longest: as long as the average, or longer.
    const double threshold_age = static_cast<double>(total_age) / static_cast<double>(count);
    has_freed = false;
    for (auto it = large_->free.begin(); it != large_->free.end();) {
      Block* block = *it++;
      const auto age = static_cast<size_t>(large_->age(block));
      if (block->is_split() || block->expandable != nullptr || static_cast<double>(age) < threshold_age) {
        continue;
      }
      has_freed = true;
      reclaimed += block->size;
      total_age -= age;
      --count;
      release(block);
    }
  }
}

// Gives back enough blocks that are too large to be split.
bool CachingAllocator::release_oversized(const Request& request) {
  if (config_.max_split_size == std::numeric_limits<size_t>::max()) {
    return false;
  }
  BlockPool& pool = *request.pool;
  Block key = request.key();
  key.size = std::max(key.size, config_.max_split_size);
  auto it = pool.free.lower_bound(&key);
  if (it != pool.free.end() && (*it)->stream == request.stream && (*it)->expandable == nullptr) {
    release(*it);
    return true;
  }
  size_t released = 0;
  while (released < key.size && it != pool.free.begin()) {
    Block* block = *std::prev(it);
    if (block->size < config_.max_split_size || block->stream != request.stream) {
      break;
    }
    if (block->expandable != nullptr) {
      --it;
      continue;
    }
    released += block->size;
    release(block);
  }
  return released >= key.size;
}

bool CachingAllocator::release_cached() {
  if (!is_capturing()) {
    synchronize_events();
    release_blocks(*large_);
    release_blocks(*small_);
  }
  for (auto it = private_pools_.begin(); it != private_pools_.end();) {
    PrivatePool& pool = *it->second;
    if (!pool.is_released) {
      ++it;
      continue;
    }
    release_blocks(pool.small);
    release_blocks(pool.large);
    const bool is_empty = pool.segments == 0 && pool.small.unmapped.empty() && pool.large.unmapped.empty();
    it = is_empty ? private_pools_.erase(it) : std::next(it);
  }
  return true;
}

void CachingAllocator::release_blocks(BlockPool& pool) {
  std::vector<Block*> to_unmap;
  for (auto it = pool.free.begin(); it != pool.free.end();) {
    Block* block = *it++;
    if (block->expandable != nullptr) {
      to_unmap.push_back(block);
    } else if (!block->is_split()) {
      release(block);
    }
  }
  for (Block* block : to_unmap) {
    unmap(block);
    if (!block->is_split() && !block->is_mapped) {
      const auto segment = std::find_if(
          expandable_.begin(), expandable_.end(), [&](const auto& one) { return one.get() == block->expandable; });
      memory_.free_addresses((*segment)->address, (*segment)->size);
      expandable_.erase(segment);
      pool.unmapped.erase(block);
      delete_block(block);
    }
  }
}

void CachingAllocator::release(Block* block) {
  BlockPool& pool = *block->pool;
  ++stats_.num_device_free;
  trace(Action::kSegmentFree, *block, block->address, block->size);
  memory_.free(block->address, block->size);
  total_ -= block->size;
  if (pool.owner != nullptr) {
    --pool.owner->segments;
  }
  stats_.segment.decrease(pool.is_small, 1);
  count_reserved(pool, block->size, /*is_more=*/false);
  if (block->size >= config_.max_split_size) {
    stats_.oversize_segments.decrease(1);
  }
  pool.free.erase(block);
  delete_block(block);
}

void CachingAllocator::count_reserved(const BlockPool& pool, size_t nbytes, bool is_more) {
  const auto count = [&](StatArray& stat) {
    is_more ? stat.increase(pool.is_small, nbytes) : stat.decrease(pool.is_small, nbytes);
  };
  count(stats_.reserved_bytes);
  if (pool.owner != nullptr) {
    count(stats_.reserved_bytes_by_private_pools[pool.owner->id]);
  }
}

void CachingAllocator::throw_out_of_memory(const Request& request) {
  const size_t free_bytes = memory_.free_bytes();
  if (trace_) {
    trace_({Action::kOutOfMemory, free_bytes, request.size, request.stream, request.pool->id()});
  }
  ++stats_.num_ooms;
  const auto allocated = static_cast<size_t>(stats_.allocated_bytes.parts[StatArray::kAll].current);
  const auto reserved = static_cast<size_t>(stats_.reserved_bytes.parts[StatArray::kAll].current);
  size_t in_pools = 0;
  for (const auto& [id, pool] : private_pools_) {
    for (const BlockPool* part : {&pool->small, &pool->large}) {
      for (const Block* block : part->free) {
        in_pools += block->size;
      }
    }
  }
  using c10::CachingAllocator::format_size;
  std::string allowed;
  if (limit_) {
    allowed = format_size(*limit_) + " allowed; ";
  }
  std::string pools;
  if (in_pools > 0) {
    pools = "with " + format_size(in_pools) + " allocated in private pools (e.g., CUDA Graphs), ";
  }
  const size_t total = memory_.total_bytes();
  TORCH_CHECK_WITH(
      OutOfMemoryError,
      false,
      "CUDA out of memory. Tried to allocate ",
      format_size(request.segment),
      ". GPU ",
      static_cast<int>(device_),
      " has a total capacity of ",
      format_size(total),
      " of which ",
      format_size(free_bytes),
      " is free. Including non-PyTorch memory, this process has ",
      format_size(total - free_bytes),
      " memory in use. ",
      allowed,
      "Of the allocated memory ",
      format_size(allocated + in_pools),
      " is allocated by PyTorch, ",
      pools,
      "and ",
      format_size(reserved - allocated - in_pools),
      " is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting"
      " PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory "
      "Management "
      " (https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)");
}

// ---- Questions and settings

void CachingAllocator::begin_pool_scope(PoolId pool) {
  const std::lock_guard lock(mutex_);
  auto& entry = private_pools_[pool];
  if (entry == nullptr) {
    entry = std::make_unique<PrivatePool>(pool, config_.release.prefers_older_segments());
  }
  entry->is_released = false;
  scopes_.push_back(pool);
}

void CachingAllocator::end_pool_scope() {
  const std::lock_guard lock(mutex_);
  TORCH_CHECK(!scopes_.empty(), "end_pool_scope: no scope has begun.");
  scopes_.pop_back();
}

void CachingAllocator::release_pool(PoolId pool) {
  const std::lock_guard lock(mutex_);
  const auto found = private_pools_.find(pool);
  TORCH_CHECK(found != private_pools_.end(), "release_pool: there is no pool ", pool.first, ", ", pool.second, ".");
  found->second->is_released = true;
}

void CachingAllocator::empty_cache() {
  const std::lock_guard lock(mutex_);
  release_cached();
}

void CachingAllocator::set_memory_fraction(double fraction) {
  TORCH_CHECK(0 <= fraction && fraction <= 1, "invalid fraction:", fraction, ". Please set within [0, 1].");
  const std::lock_guard lock(mutex_);
  limit_.reset();
  if (fraction < 1) {
    limit_ = static_cast<size_t>(std::round(fraction * static_cast<double>(memory_.total_bytes())));
  }
}

double CachingAllocator::memory_fraction() const {
  const std::lock_guard lock(mutex_);
  return limit_ ? static_cast<double>(*limit_) / static_cast<double>(memory_.total_bytes()) : 1.0;
}

void CachingAllocator::set_config(AllocatorConfig config) {
  const std::lock_guard lock(mutex_);
  config.release = config_.release;
  config_ = std::move(config);
}

AllocatorConfig CachingAllocator::config() const {
  const std::lock_guard lock(mutex_);
  return config_;
}

DeviceStats CachingAllocator::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

void CachingAllocator::reset_peak_stats() {
  const std::lock_guard lock(mutex_);
  stats_.reset_peak();
}

void CachingAllocator::reset_accumulated_stats() {
  const std::lock_guard lock(mutex_);
  stats_.reset_accumulated();
}

int64_t CachingAllocator::allocated_bytes() const {
  const std::lock_guard lock(mutex_);
  return stats_.allocated_bytes.parts[StatArray::kAll].current;
}

int64_t CachingAllocator::reserved_bytes() const {
  const std::lock_guard lock(mutex_);
  return stats_.reserved_bytes.parts[StatArray::kAll].current;
}

size_t CachingAllocator::block_size(const Block* block) {
  return block->size;
}

uint64_t CachingAllocator::block_address(const Block* block) {
  return block->address;
}

void CachingAllocator::set_trace(std::function<void(const TraceEntry&)> trace) {
  const std::lock_guard lock(mutex_);
  trace_ = std::move(trace);
}

std::vector<SegmentInfo> CachingAllocator::snapshot() const {
  const std::lock_guard lock(mutex_);
  std::vector<SegmentInfo> segments;
  for_each_block([&](const Block* head) {
    // Of an expandable segment, each range with memory is one.
    if (!head->is_mapped || (head->prev != nullptr && head->prev->is_mapped)) {
      return;
    }
    SegmentInfo& segment = segments.emplace_back();
    segment.address = head->address;
    segment.stream = head->stream;
    segment.is_large = !head->pool->is_small;
    segment.is_expandable = head->expandable != nullptr;
    segment.pool = head->pool->id();
    for (const Block* block = head; block != nullptr && block->is_mapped; block = block->next) {
      BlockInfo& info = segment.blocks.emplace_back();
      info = {block->address, block->size, block->requested_size, block->is_allocated, !block->is_free()};
      segment.total_size += info.size;
      segment.allocated_size += info.is_allocated ? info.size : 0;
      segment.active_size += info.is_active ? info.size : 0;
      segment.requested_size += info.is_active ? info.requested_size : 0;
    }
  });
  std::sort(segments.begin(), segments.end(), [](const auto& a, const auto& b) { return a.address < b.address; });
  return segments;
}

}  // namespace torchfake::memory
