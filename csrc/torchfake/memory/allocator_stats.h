// The statistics of PyTorch's caching allocator, as reported by torch.cuda.memory_stats().
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>

namespace torchfake::memory {

struct Stat {
  int64_t current = 0;
  int64_t peak = 0;
  int64_t allocated = 0;  // the sum of all increases
  int64_t freed = 0;

  void increase(size_t amount) {
    current += static_cast<int64_t>(amount);
    peak = std::max(peak, current);
    allocated += static_cast<int64_t>(amount);
  }
  void decrease(size_t amount) {
    current -= static_cast<int64_t>(amount);
    freed += static_cast<int64_t>(amount);
  }
  void reset_accumulated() {
    allocated = 0;
    freed = 0;
  }
  void reset_peak() {
    peak = current;
  }
};

// For both pools together, and for each.
struct StatArray {
  enum Part : uint8_t { kAll, kSmallPool, kLargePool };
  std::array<Stat, 3> parts;

  void increase(bool is_small, size_t amount) {
    parts[kAll].increase(amount);
    parts[is_small ? kSmallPool : kLargePool].increase(amount);
  }
  void decrease(bool is_small, size_t amount) {
    parts[kAll].decrease(amount);
    parts[is_small ? kSmallPool : kLargePool].decrease(amount);
  }
};

// Identifies a pool of a graph or of the user; {0, 0} is the default pool.
struct PoolId {
  uint64_t first = 0;
  uint64_t second = 0;

  auto operator<=>(const PoolId&) const = default;
};

struct DeviceStats {
  // Counts
  StatArray allocation;
  StatArray segment;
  StatArray active;  // allocated, or in use by another stream
  StatArray inactive_split;  // free parts of segments that are in use
  Stat oversize_allocations;
  Stat oversize_segments;
  int64_t num_alloc_retries = 0;
  int64_t num_ooms = 0;
  int64_t num_sync_all_streams = 0;
  int64_t num_device_alloc = 0;
  int64_t num_device_free = 0;
  int64_t num_oom_rejections = 0;
  // Bytes
  StatArray allocated_bytes;
  StatArray reserved_bytes;
  StatArray active_bytes;
  StatArray inactive_split_bytes;
  StatArray requested_bytes;
  std::map<PoolId, StatArray> reserved_bytes_by_private_pools;

  // Calls `f` with the name and the array of each statistic of array type, ordered by name.
  template <typename Self, typename F>
  static void for_each_array(Self& self, F&& f) {
    f("active", self.active);
    f("active_bytes", self.active_bytes);
    f("allocated_bytes", self.allocated_bytes);
    f("allocation", self.allocation);
    f("inactive_split", self.inactive_split);
    f("inactive_split_bytes", self.inactive_split_bytes);
    f("requested_bytes", self.requested_bytes);
    f("reserved_bytes", self.reserved_bytes);
    f("segment", self.segment);
  }

  void reset_accumulated();
  void reset_peak();
};

inline void DeviceStats::reset_accumulated() {
  const auto reset = [](const char*, StatArray& array) {
    for (Stat& stat : array.parts) {
      stat.reset_accumulated();
    }
  };
  for_each_array(*this, reset);
  for (auto& [id, array] : reserved_bytes_by_private_pools) {
    reset("", array);
  }
  oversize_allocations.reset_accumulated();
  oversize_segments.reset_accumulated();
  num_alloc_retries = num_ooms = num_sync_all_streams = 0;
  num_device_alloc = num_device_free = num_oom_rejections = 0;
}

inline void DeviceStats::reset_peak() {
  const auto reset = [](const char*, StatArray& array) {
    for (Stat& stat : array.parts) {
      stat.reset_peak();
    }
  };
  for_each_array(*this, reset);
  for (auto& [id, array] : reserved_bytes_by_private_pools) {
    reset("", array);
  }
  oversize_allocations.reset_peak();
  oversize_segments.reset_peak();
}

}  // namespace torchfake::memory
