// The memory model: the caching allocator by itself.
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>
#include <torchfake/memory/caching_allocator.h>

#include <unordered_map>

#include "memory_bindings.h"
#include "memory_dicts.h"

namespace torchfake {

namespace {

namespace py = pybind11;

// A card whose segments have the recorded addresses, in the order of their allocation.
class RecordedMemory final : public memory::DeviceMemory {
 public:
  RecordedMemory(size_t total, std::vector<uint64_t> addresses) : card_(total), addresses_(std::move(addresses)) {}

  std::optional<uint64_t> allocate(size_t nbytes) override {
    if (next_ == addresses_.size()) {
      return card_.allocate(nbytes);
    }
    return addresses_[next_++];
  }
  void free(uint64_t /*address*/, size_t /*nbytes*/) override {}
  uint64_t reserve_addresses(size_t nbytes) override {
    return card_.reserve_addresses(nbytes);
  }
  void free_addresses(uint64_t address, size_t nbytes) override {
    card_.free_addresses(address, nbytes);
  }
  bool map(uint64_t address, size_t nbytes) override {
    return card_.map(address, nbytes);
  }
  void unmap(uint64_t address, size_t nbytes) override {
    card_.unmap(address, nbytes);
  }
  size_t total_bytes() const override {
    return card_.total_bytes();
  }
  size_t free_bytes() const override {
    return card_.free_bytes();
  }

 private:
  memory::CardMemory card_;
  std::vector<uint64_t> addresses_;
  size_t next_ = 0;
};

std::unique_ptr<memory::DeviceMemory> new_memory(size_t total, std::vector<uint64_t> addresses) {
  if (addresses.empty()) {
    return std::make_unique<memory::CardMemory>(total);
  }
  return std::make_unique<RecordedMemory>(total, std::move(addresses));
}

// The allocator with blocks identified by numbers, and a log of its actions.
class AllocatorModel {
 public:
  AllocatorModel(const std::string& config, size_t total, std::optional<int> release, std::vector<uint64_t> addresses)
      : memory_(new_memory(total, std::move(addresses))), allocator_(parsed(config, release), *memory_) {}

  uint64_t allocate(size_t nbytes, c10::StreamId stream) {
    memory::Block* block = allocator_.allocate(nbytes, stream);
    blocks_.emplace(next_, block);
    return next_++;
  }
  void free(uint64_t number) {
    const auto found = blocks_.find(number);
    TORCH_CHECK_VALUE(found != blocks_.end(), "AllocatorModel.free: there is no block ", number, ".");
    allocator_.free(found->second);
    blocks_.erase(found);
  }
  void record_stream(uint64_t number, c10::StreamId stream) {
    const auto found = blocks_.find(number);
    TORCH_CHECK_VALUE(found != blocks_.end(), "AllocatorModel.record_stream: there is no block ", number, ".");
    allocator_.record_stream(found->second, stream);
  }
  void record_trace() {
    allocator_.set_trace([this](const memory::TraceEntry& entry) { trace_.push_back(entry); });
  }
  py::list trace() const {
    py::list entries;
    for (const memory::TraceEntry& entry : trace_) {
      entries.append(py::make_tuple(memory::to_string(entry.action), entry.address, entry.size, entry.stream));
    }
    return entries;
  }
  memory::CachingAllocator& allocator() {
    return allocator_;
  }

 private:
  static memory::AllocatorConfig parsed(const std::string& text, std::optional<int> release) {
    memory::AllocatorConfig config = memory::parse_allocator_config(text);
    if (release) {
      config.release.minor = *release;
    }
    return config;
  }

  std::unique_ptr<memory::DeviceMemory> memory_;
  memory::CachingAllocator allocator_;
  std::unordered_map<uint64_t, memory::Block*> blocks_;
  std::vector<memory::TraceEntry> trace_;
  uint64_t next_ = 0;
};

}  // namespace

void bind_memory(py::module_& module) {
  py::class_<AllocatorModel>(module, "AllocatorModel")
      .def(
          py::init<const std::string&, size_t, std::optional<int>, std::vector<uint64_t>>(),
          py::kw_only(),
          py::arg("config") = "",
          py::arg("total"),
          py::arg("release") = py::none(),
          py::arg("addresses") = std::vector<uint64_t>{})
      .def(
          "allocate",
          [](AllocatorModel& self, size_t nbytes, c10::StreamId stream) { return self.allocate(nbytes, stream); },
          py::arg("nbytes"),
          py::arg("stream") = 0)
      .def(
          "free", [](AllocatorModel& self, uint64_t block) { self.free(block); }, py::arg("block"))
      .def(
          "record_stream",
          [](AllocatorModel& self, uint64_t block, c10::StreamId stream) { self.record_stream(block, stream); },
          py::arg("block"),
          py::arg("stream"))
      .def(
          "begin_pool",
          [](AllocatorModel& self, uint64_t pool) { self.allocator().begin_pool_scope({0, pool}); },
          py::arg("pool"))
      .def("end_pool", [](AllocatorModel& self) { self.allocator().end_pool_scope(); })
      .def(
          "release_pool",
          [](AllocatorModel& self, uint64_t pool) { self.allocator().release_pool({0, pool}); },
          py::arg("pool"))
      .def("empty_cache", [](AllocatorModel& self) { self.allocator().empty_cache(); })
      .def(
          "set_memory_fraction",
          [](AllocatorModel& self, double fraction) { self.allocator().set_memory_fraction(fraction); },
          py::arg("fraction"))
      .def("reset_peak_stats", [](AllocatorModel& self) { self.allocator().reset_peak_stats(); })
      .def("reset_accumulated_stats", [](AllocatorModel& self) { self.allocator().reset_accumulated_stats(); })
      .def(
          "stats", [](AllocatorModel& self) { return stats_dict(self.allocator().stats(), self.allocator().config()); })
      .def("segments", [](AllocatorModel& self) { return segments_list(self.allocator().snapshot(), 0); })
      .def("record_trace", [](AllocatorModel& self) { self.record_trace(); })
      .def("trace", [](AllocatorModel& self) { return self.trace(); });
}

}  // namespace torchfake
