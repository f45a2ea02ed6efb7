// The allocator model's queries and settings: statistics, limits, private pools, snapshots.
#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>

#include <torchfake/memory/allocation_request.h>

#include <algorithm>
#include <cmath>

namespace torchfake::memory {

namespace {

using Action = TraceEntry::Action;

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

void CachingAllocator::for_each_allocated(const std::function<void(Block&)>& f) {
  const std::lock_guard lock(mutex_);
  for (Block& block : blocks_.all()) {
    if (block.segment != nullptr && block.is_allocated) {
      f(block);
    }
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

void CachingAllocator::begin_pool_scope(PoolId pool) {
  const std::lock_guard lock(mutex_);
  auto& entry = private_pools_[pool];
  if (entry == nullptr) {
    entry = std::make_unique<PrivatePool>(*this, pool, config_.release.prefers_older_segments());
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
  for (const Block& one : blocks_.all()) {
    // Each mapped range of an expandable segment is a segment of its own.
    const Block* head = &one;
    if (one.segment == nullptr || !one.is_mapped || (one.prev != nullptr && one.prev->is_mapped)) {
      continue;
    }
    SegmentInfo& segment = segments.emplace_back();
    segment.address = head->address;
    segment.stream = head->stream();
    segment.is_large = !head->pool().is_small;
    segment.is_expandable = head->segment->is_expandable();
    segment.pool = head->pool().id();
    for (const Block* block = head; block != nullptr && block->is_mapped; block = block->next) {
      BlockInfo& info = segment.blocks.emplace_back();
      info = {block->address, block->size, block->requested_size, block->is_allocated, !block->is_free()};
      segment.total_size += info.size;
      segment.allocated_size += info.is_allocated ? info.size : 0;
      segment.active_size += info.is_active ? info.size : 0;
      segment.requested_size += info.is_active ? info.requested_size : 0;
    }
  }
  std::sort(segments.begin(), segments.end(), [](const auto& a, const auto& b) { return a.address < b.address; });
  return segments;
}

}  // namespace torchfake::memory
