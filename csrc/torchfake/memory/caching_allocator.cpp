// A model of PyTorch's caching allocator on one device: how it allocates and frees.
#include <torchfake/memory/caching_allocator.h>

#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>

#include <torchfake/memory/allocation_request.h>

#include <bit>

namespace torchfake::memory {

namespace {

using Action = TraceEntry::Action;

constexpr size_t kMinBlock = 512;
constexpr size_t kSmallSize = kMiB;  // larger sizes belong to the large pool
constexpr size_t kMinLarge = 10 * kMiB;  // from this size on, a segment is made to fit
constexpr size_t kRoundLarge = 2 * kMiB;

// Rounds up to the next of `divisions` equal steps between two powers of two.
size_t round_to_division(size_t size, size_t divisions) {
  if (std::has_single_bit(size)) {
    return size;
  }
  const size_t floor = std::bit_floor(size);
  const size_t step = floor >> (std::bit_width(divisions) - 1);
  return step == 0 ? floor << 1 : (size + step - 1) & ~(step - 1);
}

// The size to which a free block could grow.
size_t size_with_room(const Block* block) {
  return block->size + (block->next != nullptr && !block->next->is_mapped ? block->next->size : 0);
}

}  // namespace

CachingAllocator::CachingAllocator(AllocatorConfig config, DeviceMemory& memory, c10::DeviceIndex device)
    : config_(std::move(config)),
      memory_(memory),
      device_(device),
      small_(std::make_unique<BlockPool>(*this, true, config_.release.prefers_older_segments())),
      large_(std::make_unique<BlockPool>(*this, false, config_.release.prefers_older_segments())) {
  if (config_.per_process_memory_fraction < 1) {
    set_memory_fraction(config_.per_process_memory_fraction);
  }
}

CachingAllocator::~CachingAllocator() = default;

Segment* CachingAllocator::new_segment_record(BlockPool& pool, c10::StreamId stream) {
  Segment* segment = segments_.make();
  segment->pool = &pool;
  segment->stream = stream;
  segment->registration = registrations_++;
  return segment;
}

Block* CachingAllocator::new_block(Segment* segment) {
  Block* block = blocks_.make();
  block->segment = segment;
  return block;
}

void CachingAllocator::trace(Action action, const Block& block, uint64_t address, size_t size) const {
  if (C10_UNLIKELY(static_cast<bool>(trace_))) {
    trace_({action, address, size, block.stream(), block.pool().id()});
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
  if (block->pool().is_small || request.expandable) {
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
    collect_garbage();
    refuse_early(request);
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

// Option throw_on_cudamalloc_oom.
void CachingAllocator::refuse_early(const Request& request) {
  if (C10_LIKELY(!config_.throws_before_allocating) || (limit_ && total_ + request.segment > *limit_)) {
    return;
  }
  const double allowed = config_.per_process_memory_fraction * static_cast<double>(memory_.total_bytes());
  if (total_ + request.segment <= static_cast<size_t>(allowed)) {
    return;
  }
  ++stats_.num_oom_rejections;
  TORCH_CHECK_WITH(
      OutOfMemoryError,
      false,
      "CUDA out of memory. Allocation was preemptively rejected because it would exceed per_process_memory_fraction "
      "limit. Requested size: ",
      c10::CachingAllocator::format_size(request.requested));
}

Block* CachingAllocator::find_free(Request& request) {
  BlockPool& pool = *request.pool;
  if (limit_ && config_.garbage_collection_threshold > 0) {
    ++pool.searches;
  }
  Block key = request.key();
  auto found = pool.free.lower_bound(&key);
  const auto is_ours = [&](auto at) { return at != pool.free.end() && (*at)->stream() == request.stream; };
  if (!is_ours(found)) {
    return nullptr;
  }
  if ((*found)->segment->is_expandable()) {
    if (request.expandable) {
      // An expandable block counts as the size to which it can grow. A larger block with less room to grow fits better.
      for (auto next = std::next(found);
           (*found)->segment->is_expandable() && is_ours(next) && size_with_room(*next) < size_with_room(*found);
           ++next) {
        found = next;
      }
    } else {
      while (is_ours(found) && (*found)->segment->is_expandable()) {
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
  Block* block = new_block(new_segment_record(pool, request.stream));
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
    block = new_block(rest->segment);
    block->address = rest->address;
    block->size = request.size;
    block->insert_between(rest->prev, rest);
    rest->address += request.size;
    rest->size -= request.size;
    pool.insert(rest);
    if (!block->segment->is_expandable()) {
      if (was_split) {
        stats_.inactive_split_bytes.decrease(pool.is_small, block->size);
      } else {
        stats_.inactive_split_bytes.increase(pool.is_small, rest->size);
        stats_.inactive_split.increase(pool.is_small, 1);
      }
    }
  } else if (was_split && !block->segment->is_expandable()) {
    stats_.inactive_split_bytes.decrease(pool.is_small, block->size);
    stats_.inactive_split.decrease(pool.is_small, 1);
  }
  block->is_allocated = true;
  block->storage = nullptr;
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

// ---- Freeing

void CachingAllocator::free(Block* block) {
  const std::lock_guard lock(mutex_);
  BlockPool& pool = block->pool();
  block->is_allocated = false;
  stats_.allocation.decrease(pool.is_small, 1);
  stats_.allocated_bytes.decrease(pool.is_small, block->size);
  trace(Action::kFreeRequested, *block, block->address, block->requested_size);
  if (block->size >= config_.max_split_size) {
    stats_.oversize_allocations.decrease(1);
  }
  if (C10_LIKELY(!block->is_used_elsewhere)) {
    take_back(block);
  } else if (is_capturing()) {
    deferred_.push_back(block);
  } else {
    record_events(block);
  }
}

// The block waits for the work queued on the streams that use it.
void CachingAllocator::record_events(Block* block) {
  const auto streams = stream_uses_.extract(block);
  block->is_used_elsewhere = false;
  for (const c10::StreamId stream : streams.mapped()) {
    ++block->event_count;
    events_.emplace_back(stream, block);
  }
}

void CachingAllocator::take_back(Block* block) {
  BlockPool& pool = block->pool();
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
  if (!block->segment->is_expandable()) {
    change(stats_.inactive_split, blocks);
    change(stats_.inactive_split_bytes, bytes);
  }
  stats_.active.decrease(pool.is_small, 1);
  stats_.active_bytes.decrease(pool.is_small, size);
  stats_.requested_bytes.decrease(pool.is_small, requested);
}

// Merges `block` with a free neighbour, and returns the number of bytes added.
size_t CachingAllocator::merge(Block* block, Block* neighbour) {
  if (neighbour == nullptr || !neighbour->is_free() || block->is_mapped != neighbour->is_mapped) {
    return 0;
  }
  // Done before the neighbour changes: the sets are ordered by the fields that change.
  BlockPool& pool = block->pool();
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
  blocks_.drop(neighbour);
  return size;
}

void CachingAllocator::record_stream(Block* block, c10::StreamId stream) {
  const std::lock_guard lock(mutex_);
  if (stream == block->stream()) {
    return;
  }
  stream_uses_[block].insert(stream);
  block->is_used_elsewhere = true;
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

}  // namespace torchfake::memory
