// The options of PyTorch's caching allocator (PYTORCH_ALLOC_CONF), as the model of it understands them.
#pragma once

#include <torch/version.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

namespace torchfake::memory {

inline constexpr size_t kMiB = size_t{1} << 20;

// What differs between releases of PyTorch in what the allocator does with the same calls.
struct AllocatorRelease {
  int minor = TORCH_VERSION_MINOR;  // of PyTorch 2

  // Of free blocks of one size, the one whose segment is older is taken, not the one at the lower address.
  bool prefers_older_segments() const {
    return minor >= 13;
  }
  // A scope that diverts allocations to a pool of the user's holds back what a graph's capture would: blocks used on
  // other streams are not taken back, and nothing is given back to the driver.
  bool pool_scope_is_capture() const {
    return minor < 13;
  }
  // cuBLASLt takes the workspace of cuBLAS instead of one of its own.
  bool shares_cublas_workspace() const {
    return minor >= 13;
  }
};

struct AllocatorConfig {
  size_t large_segment_size = 20 * kMiB;
  size_t max_split_size = std::numeric_limits<size_t>::max();
  size_t max_non_split_rounding_size = 20 * kMiB;
  double garbage_collection_threshold = 0;
  double per_process_memory_fraction = 1;
  bool expandable_segments = false;
  // By the power of two at or below the size in MiB: 1, 2, 4 ... 32768. 0 and 1 round to 512 bytes alone.
  std::array<size_t, 16> roundup_power2_divisions{};
  AllocatorRelease release;
  std::string text;  // what was parsed

  // The divisions that hold for an allocation of `nbytes`.
  size_t divisions_for(size_t nbytes) const;
};

// Reads what PYTORCH_ALLOC_CONF may hold: "max_split_size_mb:128,expandable_segments:True". Options that concern host
// memory or locks are accepted and have no effect here. Throws c10::ValueError for what PyTorch refuses, and for
// backend:cudaMallocAsync, which is another allocator.
AllocatorConfig parse_allocator_config(std::string_view text);

// That of the environment: PYTORCH_CUDA_ALLOC_CONF, else PYTORCH_ALLOC_CONF, else the defaults. Throws as above.
AllocatorConfig allocator_config_of_environment();

}  // namespace torchfake::memory
