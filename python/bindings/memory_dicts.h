// The allocator's statistics and snapshots as PyTorch's dictionaries: torch._C._cuda_memoryStats, _cuda_memorySnapshot.
#pragma once

#include <pybind11/pybind11.h>
#include <torchfake/memory/caching_allocator.h>

#include <vector>

namespace torchfake {

pybind11::dict stats_dict(const memory::DeviceStats& stats, const memory::AllocatorConfig& config);
pybind11::list segments_list(const std::vector<memory::SegmentInfo>& segments, int device);

}  // namespace torchfake
