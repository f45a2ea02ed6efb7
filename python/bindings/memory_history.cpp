// The memory history of a model, and snapshots as returned by torch._C._cuda_memorySnapshot.
#include "memory_history.h"

#include <pybind11/stl.h>
#include <torch/csrc/profiler/combined_traceback.h>

#include "memory_dicts.h"

namespace torchfake {

namespace {

namespace py = pybind11;
using memory::History;
using memory::HistoryOptions;

HistoryOptions::Stacks stacks_named(const std::optional<std::string>& context) {
  if (!context) {
    return HistoryOptions::Stacks::kNone;
  }
  if (*context == "state") {
    return HistoryOptions::Stacks::kState;
  }
  if (*context == "alloc") {
    return HistoryOptions::Stacks::kAlloc;
  }
  TORCH_CHECK_VALUE(*context == "all", "expected context to be 'state', 'alloc', 'all', or None, got '", *context, "'");
  return HistoryOptions::Stacks::kAll;
}

// Dictionaries that receive the frames of a stack, resolved together because frames repeat.
class Frames {
 public:
  void add(const py::dict& dict, const memory::StackPtr& stack) {
    auto* captured = dynamic_cast<torch::CapturedTraceback*>(stack.get());
    if (captured == nullptr) {
      dict["frames"] = py::list();
      return;
    }
    dicts_.push_back(dict);
    stacks_.push_back(captured);
    kept_.push_back(stack);
  }

  void resolve() {
    const torch::SymbolizedTracebacks symbolized = torch::symbolize(stacks_);
    std::vector<py::dict> frames;
    for (const torch::unwind::Frame& frame : symbolized.all_frames) {
      py::dict dict;
      dict["name"] = frame.funcname;
      dict["filename"] = frame.filename;
      dict["line"] = frame.lineno;
      frames.push_back(dict);
    }
    for (size_t i = 0; i < dicts_.size(); ++i) {
      py::list list;
      for (const uint64_t frame : symbolized.tracebacks[i]) {
        list.append(frames[frame]);
      }
      dicts_[i]["frames"] = list;
    }
  }

 private:
  std::vector<py::dict> dicts_;
  std::vector<torch::CapturedTraceback*> stacks_;
  std::vector<memory::StackPtr> kept_;
};

py::list events_list(const History& history, Frames& frames) {
  py::list list;
  for (const memory::HistoryEvent& event : history.events()) {
    const memory::TraceEntry& entry = event.entry;
    py::dict dict;
    if (event.stack != nullptr) {
      frames.add(dict, event.stack);
    }
    dict["action"] = memory::to_string(entry.action);
    dict[entry.action == memory::TraceEntry::Action::kOutOfMemory ? "device_free" : "addr"] = entry.address;
    dict["size"] = entry.size;
    dict["stream"] = entry.stream;
    dict["time_us"] = event.time_us;
    dict["compile_context"] = "";
    dict["user_metadata"] = "";
    dict["pool_id"] = py::make_tuple(entry.pool.first, entry.pool.second);
    list.append(dict);
  }
  return list;
}

void add_stacks(const py::list& segments, const History& history, Frames& frames) {
  for (const py::handle item : segments) {
    const auto segment = py::reinterpret_borrow<py::dict>(item);
    frames.add(segment, history.stack_of_segment(segment["address"].cast<uint64_t>()));
    for (const py::handle inner : segment["blocks"]) {
      const auto block = py::reinterpret_borrow<py::dict>(inner);
      const bool lives = block["state"].cast<std::string>() != "inactive";
      frames.add(block, lives ? history.stack_of_block(block["address"].cast<uint64_t>()) : nullptr);
    }
  }
}

py::dict settings_dict(const memory::AllocatorConfig& config) {
  py::dict dict;
  dict["PYTORCH_CUDA_ALLOC_CONF"] = config.text;
  dict["max_split_size"] = static_cast<int64_t>(config.max_split_size);
  dict["garbage_collection_threshold"] = config.garbage_collection_threshold;
  dict["expandable_segments"] = config.expandable_segments;
  py::dict divisions;
  size_t size = 1;
  for (const size_t division : config.roundup_power2_divisions) {
    divisions[py::str(std::to_string(size))] = division;
    size *= 2;
  }
  dict["roundup_power2_divisions"] = divisions;
  return dict;
}

}  // namespace

void set_history(
    memory::MemoryModel& model,
    const std::optional<std::string>& enabled,
    const std::optional<std::string>& context,
    const std::string& stacks,
    size_t max_entries,
    bool clear,
    const std::vector<std::string>& skipped) {
  TORCH_CHECK_VALUE(
      !enabled || *enabled == "state" || *enabled == "all",
      "expected enabled to be 'state', 'all', or None, got '",
      enabled.value_or(""),
      "'");
  TORCH_CHECK_VALUE(
      stacks == "python" || stacks == "all", "expected stacks to be 'python', or 'all', got '", stacks, "'");
  if (!enabled) {
    model.set_history(std::nullopt, clear);
    return;
  }
  HistoryOptions options;
  options.keeps_events = *enabled == "all";
  options.stacks = stacks_named(context);
  options.max_events = max_entries;
  options.skipped = {skipped.begin(), skipped.end()};
  const bool with_cpp = stacks == "all";
  options.gather = [with_cpp]() -> memory::StackPtr {
    return torch::CapturedTraceback::gather(/*python=*/true, /*script=*/false, with_cpp);
  };
  model.set_history(std::move(options), clear);
}

py::dict snapshot_dict(memory::MemoryModel& model, int devices) {
  Frames frames;
  py::list segments;
  py::list traces;
  for (int index = 0; index < devices; ++index) {
    const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(index));
    const py::list of_device = segments_list(model.allocator(device).snapshot(), index);
    py::list events;
    model.with_history(device, [&](const History* history) {
      if (history != nullptr) {
        events = events_list(*history, frames);
        add_stacks(of_device, *history, frames);
      }
    });
    for (const py::handle segment : of_device) {
      segments.append(segment);
    }
    traces.append(events);
  }
  frames.resolve();
  py::dict dict;
  dict["segments"] = segments;
  dict["device_traces"] = traces;
  dict["allocator_settings"] = settings_dict(model.allocator(c10::Device(c10::kCUDA, 0)).config());
  dict["external_annotations"] = py::list();
  return dict;
}

}  // namespace torchfake
