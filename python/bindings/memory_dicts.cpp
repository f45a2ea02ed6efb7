// The allocator's statistics and snapshots as PyTorch's own dictionaries.
#include "memory_dicts.h"

#include <array>

namespace torchfake {

namespace {

namespace py = pybind11;

py::dict stat_dict(const memory::Stat& stat) {
  py::dict dict;
  dict["current"] = stat.current;
  dict["peak"] = stat.peak;
  dict["allocated"] = stat.allocated;
  dict["freed"] = stat.freed;
  return dict;
}

py::dict array_dict(const memory::StatArray& array) {
  constexpr std::array kNames{"all", "small_pool", "large_pool"};
  py::dict dict;
  for (size_t i = 0; i < kNames.size(); ++i) {
    dict[kNames[i]] = stat_dict(array.parts[i]);
  }
  return dict;
}

const char* state_of(const memory::BlockInfo& block) {
  if (block.is_allocated) {
    return "active_allocated";
  }
  return block.is_active ? "active_pending_free" : "inactive";
}

}  // namespace

py::dict stats_dict(const memory::DeviceStats& stats, const memory::AllocatorConfig& config) {
  py::dict dict;
  dict["num_alloc_retries"] = stats.num_alloc_retries;
  dict["num_ooms"] = stats.num_ooms;
  dict["max_split_size"] = static_cast<int64_t>(config.max_split_size);
  dict["num_sync_all_streams"] = stats.num_sync_all_streams;
  dict["num_device_alloc"] = stats.num_device_alloc;
  dict["num_device_free"] = stats.num_device_free;
  if (config.release.minor >= 13) {
    dict["num_oom_rejections"] = stats.num_oom_rejections;
    py::dict pools;
    for (const auto& [id, array] : stats.reserved_bytes_by_private_pools) {
      pools[py::make_tuple(id.first, id.second)] = array_dict(array);
    }
    dict["reserved_bytes_by_private_pools"] = pools;
  }
  memory::DeviceStats::for_each_array(
      stats, [&](const char* name, const memory::StatArray& array) { dict[name] = array_dict(array); });
  dict["oversize_allocations"] = stat_dict(stats.oversize_allocations);
  dict["oversize_segments"] = stat_dict(stats.oversize_segments);
  return dict;
}

py::list segments_list(const std::vector<memory::SegmentInfo>& segments, int device) {
  py::list list;
  for (const memory::SegmentInfo& segment : segments) {
    py::dict dict;
    dict["device"] = device;
    dict["address"] = segment.address;
    dict["total_size"] = segment.total_size;
    dict["allocated_size"] = segment.allocated_size;
    dict["active_size"] = segment.active_size;
    dict["requested_size"] = segment.requested_size;
    dict["stream"] = segment.stream;
    dict["segment_type"] = segment.is_large ? "large" : "small";
    dict["segment_pool_id"] = py::make_tuple(segment.pool.first, segment.pool.second);
    dict["is_expandable"] = segment.is_expandable;
    dict["frames"] = py::list();
    py::list blocks;
    for (const memory::BlockInfo& block : segment.blocks) {
      py::dict entry;
      entry["address"] = block.address;
      entry["size"] = block.size;
      entry["requested_size"] = block.requested_size;
      entry["state"] = state_of(block);
      entry["frames"] = py::list();
      blocks.append(entry);
    }
    dict["blocks"] = blocks;
    list.append(dict);
  }
  return list;
}

}  // namespace torchfake
