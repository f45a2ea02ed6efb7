// How the allocator model returns memory to the card.
#include <torchfake/memory/allocation_request.h>

#include <algorithm>
#include <limits>

namespace torchfake::memory {

namespace {

using Action = TraceEntry::Action;

}  // namespace

void CachingAllocator::collect_garbage() {
  if (!limit_ || config_.garbage_collection_threshold <= 0) {
    return;
  }
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
    // Releases the blocks that have been free for at least the average age.
    const double threshold_age = static_cast<double>(total_age) / static_cast<double>(count);
    has_freed = false;
    for (auto it = large_->free.begin(); it != large_->free.end();) {
      Block* block = *it++;
      const auto age = static_cast<size_t>(large_->age(block));
      if (block->is_split() || block->segment->is_expandable() || static_cast<double>(age) < threshold_age) {
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

// Releases blocks that are too large to be split until their total is sufficient.
bool CachingAllocator::release_oversized(Request& request) {
  if (config_.max_split_size == std::numeric_limits<size_t>::max()) {
    return false;
  }
  BlockPool& pool = *request.pool;
  Block key = request.key();
  key.size = std::max(key.size, config_.max_split_size);
  auto it = pool.free.lower_bound(&key);
  if (it != pool.free.end() && (*it)->stream() == request.stream && !(*it)->segment->is_expandable()) {
    release(*it);
    return true;
  }
  size_t released = 0;
  while (released < key.size && it != pool.free.begin()) {
    Block* block = *std::prev(it);
    if (block->size < config_.max_split_size || block->stream() != request.stream) {
      break;
    }
    if (block->segment->is_expandable()) {
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
    if (block->segment->is_expandable()) {
      to_unmap.push_back(block);
    } else if (!block->is_split()) {
      release(block);
    }
  }
  for (Block* block : to_unmap) {
    unmap(block);
    if (!block->is_split() && !block->is_mapped) {
      memory_.free_addresses(block->segment->address, block->segment->size);
      pool.unmapped.erase(block);
      segments_.drop(block->segment);
      blocks_.drop(block);
    }
  }
}

void CachingAllocator::release(Block* block) {
  BlockPool& pool = block->pool();
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
  segments_.drop(block->segment);
  blocks_.drop(block);
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

}  // namespace torchfake::memory
