// The options of PyTorch's caching allocator (PYTORCH_ALLOC_CONF), as interpreted by the model.
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

// Differences between PyTorch releases in how the allocator responds to the same calls.
struct AllocatorRelease {
  int minor = TORCH_VERSION_MINOR;  // the minor version of PyTorch 2

  // Among free blocks of the same size, the one in the older segment is taken, instead of the one at the lower address.
  bool prefers_older_segments() const {
    return minor >= 13;
  }
  // A scope that redirects allocations to a user's pool has the restrictions of a graph capture: blocks used on other
  // streams are not reclaimed, and no memory is returned to the driver.
  bool pool_scope_is_capture() const {
    return minor < 13;
  }
  // cuBLASLt uses the workspace of cuBLAS instead of its own.
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
  // Refuses what would exceed per_process_memory_fraction without freeing cached memory first.
  bool throws_before_allocating = false;
  // Indexed by the power of two at or below the size in MiB: 1, 2, 4 ... 32768. 0 and 1 only round to 512 bytes.
  std::array<size_t, 16> roundup_power2_divisions{};
  AllocatorRelease release;
  std::string text;  // the parsed text

  // The number of divisions for an allocation of `nbytes`.
  size_t divisions_for(size_t nbytes) const;
};

// Parses a value of PYTORCH_ALLOC_CONF: "max_split_size_mb:128,expandable_segments:True". Options for host memory or
// locks are accepted and have no effect. Like PyTorch, keeps what `before` says about the size of segments, expandable
// segments and the fraction unless the text names them, and resets the other options. Throws c10::ValueError for values
// that PyTorch rejects, and for backend:cudaMallocAsync, which is a different allocator.
AllocatorConfig parse_allocator_config(std::string_view text, const AllocatorConfig& before = {});

// The configuration from the environment: PYTORCH_CUDA_ALLOC_CONF, else PYTORCH_ALLOC_CONF, else the defaults. Throws
// as above.
AllocatorConfig allocator_config_of_environment();

}  // namespace torchfake::memory
