// The request that the allocator model is serving while it allocates.
#pragma once

#include <torchfake/memory/block.h>

namespace torchfake::memory {

constexpr size_t kSmallSegment = 2 * kMiB;

inline size_t round_up(size_t size, size_t multiple) {
  return (size + multiple - 1) / multiple * multiple;
}

struct CachingAllocator::Request {
  size_t requested = 0;
  size_t size = 0;  // rounded
  size_t segment = 0;  // size of a new segment
  c10::StreamId stream = 0;
  BlockPool* pool = nullptr;
  bool expandable = false;
  Segment before_all;  // of the stream, and ordered before all segments: see key()

  // Ordered before all blocks that are large enough.
  Block key() {
    before_all.stream = stream;
    before_all.registration = -1;
    Block block;
    block.segment = &before_all;
    block.size = size;
    return block;
  }
};

}  // namespace torchfake::memory
