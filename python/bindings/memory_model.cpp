// The memory model of a mode: its statistics, and the ledger of owners.
#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>
#include <torchfake/core/fake_mode.h>
#include <torchfake/core/fake_storage.h>
#include <torchfake/core/fake_tensor_impl.h>
#include <torchfake/memory/memory_model.h>
#include <torchfake/memory/observer_pair.h>
#include <torchfake/memory/scopes.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>

#include "memory_bindings.h"
#include "memory_dicts.h"
#include "memory_history.h"

namespace torchfake {

namespace {

namespace py = pybind11;
using memory::Ledger;
using memory::MemoryModel;

py::dict owners_dict(const std::array<int64_t, memory::kOwners>& bytes) {
  py::dict dict;
  for (size_t i = 0; i < memory::kOwners; ++i) {
    dict[py::str(std::string(memory::to_string(static_cast<memory::Owner>(i))))] = bytes[i];
  }
  return dict;
}

memory::Owner owner_named(const std::string& name) {
  for (size_t i = 0; i < memory::kOwners; ++i) {
    const auto owner = static_cast<memory::Owner>(i);
    if (memory::to_string(owner) == name) {
      return owner;
    }
  }
  TORCH_CHECK_VALUE(false, "there is no owner '", name, "'.");
}

// A single call for a list of tensors: an optimizer has hundreds of them.
void claim_tensors(Ledger& ledger, const std::vector<at::Tensor>& tensors, const std::string& owner, uint32_t scope) {
  const memory::Owner who = owner_named(owner);
  for (const at::Tensor& tensor : tensors) {
    memory::claim_tensor(ledger, tensor, who, scope);
  }
}

// Claims a tensor, and the tensors inside a wrapper such as a DTensor.
void claim_object(Ledger& ledger, const py::handle& tensor, memory::Owner owner, uint32_t scope) {
  if (!THPVariable_Check(tensor.ptr())) {
    return;
  }
  memory::claim_tensor(ledger, THPVariable_Unpack(tensor.ptr()), owner, scope);
  if (!THPVariable_CheckExact(tensor.ptr()) && py::hasattr(tensor, "__tensor_flatten__")) {
    const auto flat = py::cast<py::tuple>(tensor.attr("__tensor_flatten__")());
    for (const py::handle& name : flat[0]) {
      claim_object(ledger, py::getattr(tensor, name), owner, scope);
    }
  }
}

// Wrappers hold no memory themselves, nor do their gradients, which are found when a step begins.
void claim_parameters(Ledger& ledger, const py::list& parameters, const std::vector<uint32_t>& scopes) {
  std::vector<at::Tensor> tensors(parameters.size());
  TORCH_CHECK_VALUE(tensors.size() == scopes.size(), "claim_parameters: expected a scope for each parameter");
  for (size_t i = 0; i < tensors.size(); ++i) {
    const py::handle parameter = parameters[i];
    if (THPVariable_Check(parameter.ptr()) && as_fake(THPVariable_Unpack(parameter.ptr())) != nullptr) {
      tensors[i] = THPVariable_Unpack(parameter.ptr());
    } else {
      claim_object(ledger, parameter, memory::Owner::kParameters, scopes[i]);
      claim_object(ledger, parameter.attr("grad"), memory::Owner::kGradients, scopes[i]);
    }
  }
  ledger.claim_parameters(tensors, scopes);
}

// The tensors in a part of an optimizer's state: a tensor, or a list or dict of such parts.
void claim_state(Ledger& ledger, PyObject* state, uint32_t scope) {
  if (THPVariable_Check(state)) {
    claim_object(ledger, state, memory::Owner::kOptimizerState, scope);
  } else if (PyDict_Check(state)) {
    PyObject *key = nullptr, *value = nullptr;
    for (Py_ssize_t at = 0; PyDict_Next(state, &at, &key, &value) != 0;) {
      claim_state(ledger, value, scope);
    }
  } else if (PyList_Check(state) || PyTuple_Check(state)) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(state); ++i) {
      claim_state(ledger, PySequence_Fast_GET_ITEM(state, i), scope);
    }
  }
}

// Runs after every step of an optimizer, so it must be cheap. `scopes` has the scope of a parameter by its identity.
void claim_states(Ledger& ledger, const py::dict& states, const py::dict& scopes) {
  for (const auto& [parameter, state] : states) {
    const py::int_ identity(reinterpret_cast<uintptr_t>(parameter.ptr()));
    PyObject* scope = PyDict_GetItemWithError(scopes.ptr(), identity.ptr());
    claim_state(ledger, state.ptr(), scope == nullptr ? 0 : py::cast<uint32_t>(scope));
  }
}

py::list list_of(const std::vector<memory::LedgerRecord>& records) {
  py::list list;
  for (const memory::LedgerRecord& record : records) {
    list.append(
        py::make_tuple(
            record.device.str(),
            record.nbytes,
            record.requested,
            record.born,
            record.died,
            std::string(memory::to_string(record.owner)),
            std::string(record.op),
            record.scope,
            record.phase,
            static_cast<int>(record.activity),
            record.address,
            record.line));
  }
  return list;
}

// Numbers the innermost lines of the program, which is all code outside these folders, or entire stacks of its lines. A
// number, from 1 on, identifies a file, a line, and the number of the calling line (0 for the outermost line, or
// without stacks).
class ProgramLines {
 public:
  ProgramLines(std::vector<std::string> others, bool has_stacks)
      : others_(std::move(others)), has_stacks_(has_stacks) {}

  struct Line {
    std::string file;
    int line = 0;
    uint32_t caller = 0;
  };

  // May be called without the GIL.
  uint32_t current() {
    if (Py_IsInitialized() == 0) {
      return 0;
    }
    const py::gil_scoped_acquire gil;
    PyFrameObject* frame = PyEval_GetFrame();
    Py_XINCREF(reinterpret_cast<PyObject*>(frame));
    c10::SmallVector<std::pair<PyCodeObject*, int>, 16> stack;  // from the innermost; is_of_program() keeps the code
    while (frame != nullptr) {
      PyCodeObject* code = PyFrame_GetCode(frame);
      if (is_of_program(code)) {
        stack.emplace_back(code, PyFrame_GetLineNumber(frame));
      }
      Py_DECREF(reinterpret_cast<PyObject*>(code));
      PyFrameObject* back = has_stacks_ || stack.empty() ? PyFrame_GetBack(frame) : nullptr;
      Py_DECREF(reinterpret_cast<PyObject*>(frame));
      frame = back;
    }
    uint32_t number = 0;
    for (auto at = stack.rbegin(); at != stack.rend(); ++at) {
      number = number_of(at->first, at->second, number);
    }
    return number;
  }
  py::list lines() const {
    py::list list;
    for (const Line& line : lines_) {
      list.append(py::make_tuple(line.file, line.line, line.caller));
    }
    return list;
  }

 private:
  bool is_of_program(PyCodeObject* code) {
    const auto [entry, is_new] = known_.emplace(code, false);
    if (is_new) {
      codes_.push_back(
          py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(code)));  // keeps the address taken
      const auto file = py::cast<std::string>(py::handle(code->co_filename));
      entry->second = std::none_of(others_.begin(), others_.end(), [&](const std::string& other) {
        return file.compare(0, other.size(), other) == 0 &&
            file.find("site-packages", other.size()) == std::string::npos;
      });
    }
    return entry->second;
  }
  uint32_t number_of(PyCodeObject* code, int line, uint32_t caller) {
    const auto [entry, is_new] = numbers_.emplace(std::tuple(code, line, caller), static_cast<uint32_t>(lines_.size()));
    if (is_new) {
      lines_.push_back({py::cast<std::string>(py::handle(code->co_filename)), line, caller});
    }
    return entry->second;
  }

  std::vector<std::string> others_;
  std::vector<py::object> codes_;
  std::unordered_map<PyCodeObject*, bool> known_;
  std::map<std::tuple<PyCodeObject*, int, uint32_t>, uint32_t> numbers_;
  std::vector<Line> lines_{Line{}};
  const bool has_stacks_;
};

void bind_ledger(py::module_& module) {
  py::class_<ProgramLines, std::shared_ptr<ProgramLines>>(module, "ProgramLines")
      .def(py::init<std::vector<std::string>, bool>(), py::arg("others"), py::arg("stacks") = false)
      .def("lines", [](const ProgramLines& self) { return self.lines(); });
  py::class_<Ledger, std::shared_ptr<Ledger>>(module, "MemoryLedger")
      .def(py::init([] { return std::make_shared<Ledger>(); }))
      .def(
          "claim",
          [](Ledger& self, uintptr_t storage, const std::string& owner, uint32_t scope) {
            self.claim(reinterpret_cast<const void*>(storage), owner_named(owner), scope);
          },
          py::arg("storage"),
          py::arg("owner"),
          py::arg("scope") = 0)
      .def("claim_tensors", &claim_tensors, py::arg("tensors"), py::arg("owner"), py::arg("scope") = 0)
      .def("claim_parameters", &claim_parameters, py::arg("parameters"), py::arg("scopes"))
      .def("claim_states", &claim_states, py::arg("states"), py::arg("scopes"))
      .def("begin_backward", [](Ledger& self) { self.begin_backward(); })
      .def(
          "begin_phase", [](Ledger& self, std::string name) { self.begin_phase(std::move(name)); }, py::arg("name"))
      .def(
          "set_line_source",
          [](Ledger& self, std::shared_ptr<ProgramLines> lines) {
            self.set_line_source([lines = std::move(lines)] { return lines->current(); });
          },
          py::arg("lines").none(false))
      .def("records", [](const Ledger& self) { return list_of(self.records()); })
      .def(
          "records_at",
          [](const Ledger& self, const std::string& device, int64_t event) {
            return list_of(self.records_at(c10::Device(device), event));
          },
          py::arg("device"),
          py::arg("event"))
      .def("phases", [](const Ledger& self) { return self.phases(); })
      .def(
          "devices",
          [](const Ledger& self) {
            std::vector<std::string> names;
            for (const c10::Device device : self.devices()) {
              names.push_back(device.str());
            }
            return names;
          })
      .def(
          "timeline",
          [](const Ledger& self, const std::string& device, size_t points) {
            py::list list;
            for (const memory::TimelinePoint& point : self.timeline(c10::Device(device), points)) {
              list.append(py::make_tuple(point.event, point.phase, owners_dict(point.bytes)));
            }
            return list;
          },
          py::arg("device"),
          py::arg("points"))
      .def(
          "peak",
          [](const Ledger& self, const std::string& device) { return self.peak(c10::Device(device)); },
          py::arg("device"));
  // Sets the activity and scope of this thread, and returns the previous ones. A scope of None keeps the current one.
  module.def(
      "exchange_memory_context",
      [](std::optional<uint32_t> scope, int activity) {
        memory::LedgerContext& context = memory::ledger_context();
        const auto before = std::make_pair(context.scope, static_cast<int>(context.activity));
        context.scope = scope.value_or(context.scope);
        context.activity = static_cast<memory::Activity>(activity);
        return before;
      },
      py::arg("scope"),
      py::arg("activity"));
  module.def("memory_scope_number", &memory::scope_number, py::arg("path"));
  module.def("memory_scopes", &memory::scope_names);
}

void bind_model(py::module_& module) {
  py::class_<MemoryModel, std::shared_ptr<MemoryModel>>(module, "MemoryModel")
      .def(
          py::init([](size_t total,
                      int capability,
                      std::optional<size_t> context,
                      bool unlimited,
                      const std::optional<std::string>& config,
                      std::optional<int> release) {
            memory::Card card;
            card.total_bytes = total;
            card.capability_major = capability;
            card.context_bytes = context.value_or(card.context_bytes);
            card.is_unlimited = unlimited;
            memory::AllocatorConfig parsed =
                config ? memory::parse_allocator_config(*config) : memory::allocator_config_of_environment();
            if (release) {
              parsed.release.minor = *release;
            }
            return std::make_shared<MemoryModel>(card, std::move(parsed));
          }),
          py::kw_only(),
          py::arg("total"),
          py::arg("capability") = 9,
          py::arg("context") = py::none(),
          py::arg("unlimited") = false,
          py::arg("config") = py::none(),
          py::arg("release") = py::none())
      .def(
          "allocated",
          [](MemoryModel& self, const std::string& device) {
            return self.allocator(c10::Device(device)).allocated_bytes();
          })
      .def(
          "reserved",
          [](MemoryModel& self, const std::string& device) {
            return self.allocator(c10::Device(device)).reserved_bytes();
          })
      .def(
          "stats",
          [](MemoryModel& self, const std::string& device) {
            memory::CachingAllocator& allocator = self.allocator(c10::Device(device));
            return stats_dict(allocator.stats(), allocator.config());
          })
      .def(
          "segments",
          [](MemoryModel& self, const std::string& device) {
            const c10::Device which(device);
            return segments_list(self.allocator(which).snapshot(), which.index());
          })
      .def(
          "reset_peak_stats",
          [](MemoryModel& self, const std::string& device) { self.allocator(c10::Device(device)).reset_peak_stats(); })
      .def(
          "reset_accumulated_stats",
          [](MemoryModel& self, const std::string& device) {
            self.allocator(c10::Device(device)).reset_accumulated_stats();
          })
      .def(
          "empty_cache",
          [](MemoryModel& self, const std::string& device) { self.allocator(c10::Device(device)).empty_cache(); })
      .def(
          "set_memory_fraction",
          [](MemoryModel& self, const std::string& device, double fraction) {
            self.allocator(c10::Device(device)).set_memory_fraction(fraction);
          })
      .def(
          "memory_fraction",
          [](MemoryModel& self, const std::string& device) {
            return self.allocator(c10::Device(device)).memory_fraction();
          })
      .def(
          "memory_info",
          [](MemoryModel& self, const std::string& device) { return self.memory_info(c10::Device(device)); })
      .def(
          "set_config", [](MemoryModel& self, const std::string& text) { self.set_config(text); }, py::arg("text"))
      .def(
          "set_history",
          &set_history,
          py::arg("enabled"),
          py::arg("context"),
          py::arg("stacks"),
          py::arg("max_entries"),
          py::arg("clear"),
          py::arg("skipped"))
      .def("snapshot", &snapshot_dict, py::arg("devices"))
      .def(
          "begin_pool",
          [](MemoryModel& self, const std::string& device, std::pair<uint64_t, uint64_t> pool) {
            self.allocator(c10::Device(device)).begin_pool_scope({pool.first, pool.second});
          },
          py::arg("device"),
          py::arg("pool"))
      .def(
          "end_pool",
          [](MemoryModel& self, const std::string& device) { self.allocator(c10::Device(device)).end_pool_scope(); },
          py::arg("device"))
      .def(
          "release_pool",
          [](MemoryModel& self, const std::string& device, std::pair<uint64_t, uint64_t> pool) {
            self.allocator(c10::Device(device)).release_pool({pool.first, pool.second});
          },
          py::arg("device"),
          py::arg("pool"))
      .def("clear_workspaces", [](MemoryModel& self) { self.clear_workspaces(); })
      .def(
          "host_bytes",
          [](MemoryModel& self) {
            const memory::HostBytes bytes = self.host_bytes();
            return std::make_pair(bytes.current, bytes.peak);
          })
      .def_property_readonly("context_bytes", [](const MemoryModel& self) { return self.card().context_bytes; })
      .def_property(
          "ledger",
          [](MemoryModel& self) { return self.ledger(); },
          [](MemoryModel& self, std::shared_ptr<Ledger> ledger) { self.set_ledger(std::move(ledger)); });
}

}  // namespace

void bind_memory_model(py::module_& module) {
  bind_ledger(module);
  bind_model(module);
  // Must not run while another thread works in the mode: its storages read the observer without a lock.
  module.def(
      "set_memory_model",
      [](const ModePtr& mode, std::shared_ptr<MemoryModel> model) {
        // The previous observer keeps counting, and is the only one again once the model is removed.
        std::shared_ptr<StorageObserver>& observer = mode->options.storage_observer;
        if (const auto pair = std::dynamic_pointer_cast<memory::ObserverPair>(observer)) {
          observer = pair->second();
        } else if (std::dynamic_pointer_cast<MemoryModel>(observer) != nullptr) {
          observer = nullptr;
        }
        if (model != nullptr) {
          observer = observer == nullptr ? std::shared_ptr<StorageObserver>(std::move(model))
                                         : std::make_shared<memory::ObserverPair>(std::move(model), observer);
        }
      },
      py::arg("mode").none(false),
      py::arg("model"));
  module.def(
      "memory_model",
      [](const ModePtr& mode) {
        const std::shared_ptr<StorageObserver>& observer = mode->options.storage_observer;
        const auto pair = std::dynamic_pointer_cast<memory::ObserverPair>(observer);
        return std::dynamic_pointer_cast<MemoryModel>(pair != nullptr ? pair->first() : observer);
      },
      py::arg("mode").none(false));
  // The identifier of a fake's storage for its observer; 0 without an observer.
  module.def(
      "storage_key",
      [](const at::Tensor& tensor) -> uintptr_t {
        c10::StorageImpl* storage = storage_of(*tensor.unsafeGetTensorImpl());
        return storage == nullptr ? 0 : reinterpret_cast<uintptr_t>(observation_of(storage).id);
      },
      py::arg("tensor"));
}

}  // namespace torchfake
