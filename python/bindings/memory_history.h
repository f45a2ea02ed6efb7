// The memory history of a model, and snapshots as returned by torch._C._cuda_memorySnapshot.
#pragma once

#include <pybind11/pybind11.h>
#include <torchfake/memory/memory_model.h>

namespace torchfake {

// The options of torch.cuda.memory._record_memory_history. Throws c10::ValueError for options that PyTorch refuses.
void set_history(
    memory::MemoryModel& model,
    const std::optional<std::string>& enabled,
    const std::optional<std::string>& context,
    const std::string& stacks,
    size_t max_entries,
    bool clear,
    const std::vector<std::string>& skipped);

// Segments, events and settings of the devices 0 to `devices` - 1.
pybind11::dict snapshot_dict(memory::MemoryModel& model, int devices);

}  // namespace torchfake
