// The allocator model's expandable segments: address space into which memory is mapped.
#include <c10/util/Exception.h>

#include <torchfake/memory/allocation_request.h>

#include <algorithm>

namespace torchfake::memory {

namespace {

using Action = TraceEntry::Action;

}  // namespace

Block* CachingAllocator::find_expandable(Request& request) {
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
  for (auto it = pool.unmapped.lower_bound(&key); it != pool.unmapped.end() && (*it)->stream() == request.stream;
       ++it) {
    Block* block = *it;
    if (block->prev != nullptr && block->prev->is_free()) {
      block = block->prev;
    }
    if (has_room(block)) {
      return block;
    }
  }
  Segment* segment = new_segment_record(pool, request.stream);
  segment->page = pool.is_small ? kSmallSegment : config_.large_segment_size;
  // An eighth more than the card's memory, because memory may have to be mapped at higher addresses.
  segment->size = round_up(memory_.total_bytes() + memory_.total_bytes() / 8, segment->page);
  segment->address = memory_.reserve_addresses(segment->size);
  Block* block = new_block(segment);
  block->address = segment->address;
  block->size = segment->size;
  block->is_mapped = false;
  pool.unmapped.insert(block);
  return block;
}

Block* CachingAllocator::expand_segment(Request& request) {
  Block* block = find_expandable(request);
  if (!block->is_mapped && !map(block, std::min(block->size, request.size))) {
    return nullptr;
  }
  while (block->size < request.size) {
    // The next block is unmapped; mapping it merges this one into it.
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
  BlockPool& pool = block->pool();
  const size_t size = block->segment->page_above(block->address + nbytes) - block->address;
  if (!memory_.map(block->address, size)) {
    return false;
  }
  pool.unmapped.erase(block);
  block->is_mapped = true;
  const uint64_t address = block->address;
  if (size < block->size) {
    Block* rest = new_block(block->segment);
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
  BlockPool& pool = block->pool();
  const uint64_t end_of_block = block->address + block->size;
  const uint64_t begin = block->segment->page_above(block->address);
  const uint64_t end = block->segment->page_below(end_of_block);
  if (begin >= end) {
    return;
  }
  memory_.unmap(begin, end - begin);
  pool.free.erase(block);
  if (begin > block->address) {
    Block* before = new_block(block->segment);
    before->address = block->address;
    before->size = begin - block->address;
    before->insert_between(block->prev, block);
    pool.insert(before);
  }
  if (end < end_of_block) {
    Block* after = new_block(block->segment);
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

}  // namespace torchfake::memory
