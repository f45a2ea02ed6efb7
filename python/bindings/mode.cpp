// Modes, entered and left explicitly by Python's context managers.
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>
#include <torchfake/core/call_context.h>
#include <torchfake/core/fake_mode.h>
#include <torchfake/core/fake_tensor_impl.h>
#include <torchfake/core/layout_fake.h>
#include <torchfake/devices/card_memory.h>
#include <torchfake/dispatch/meta_call.h>
#include <torchfake/rules/decompositions.h>
#include <torchfake/work/meter.h>

#include <thread>

#include "bindings.h"

namespace torchfake {

namespace {

template <typename Mode>
class EnteredMode {
 public:
  template <typename... Args>
  explicit EnteredMode(Args&&... args)
      : mode_(std::make_unique<Mode>(std::forward<Args>(args)...)), thread_(std::this_thread::get_id()) {}

  ~EnteredMode() {
    // Destroyed without leave() (the interpreter is shutting down): the state of another thread must not be touched.
    if (mode_ && std::this_thread::get_id() != thread_) {
      (void)mode_.release();
    }
  }
  EnteredMode(const EnteredMode&) = delete;
  EnteredMode& operator=(const EnteredMode&) = delete;
  EnteredMode(EnteredMode&&) = delete;
  EnteredMode& operator=(EnteredMode&&) = delete;

  void leave() {
    TORCH_CHECK(
        std::this_thread::get_id() == thread_, "fake_mode: a mode has to be left on the thread that entered it.");
    mode_.reset();
  }

 private:
  std::unique_ptr<Mode> mode_;
  std::thread::id thread_;
};

using EnteredFakeMode = EnteredMode<FakeMode>;
using EnteredNoFakeMode = EnteredMode<NoFakeMode>;
using EnteredValidInput = EnteredMode<ValidInput>;
using EnteredFactorsAlone = EnteredMode<FactorsAlone>;
using EnteredKernel = EnteredMode<KernelScope>;

}  // namespace

namespace {

namespace py = pybind11;

template <typename Class, typename Value>
void bind_option(Class& state, const char* name, Option<Value> FakeModeOptions::* member) {
  state.def_property(
      name,
      [member](const ModeState& mode) { return (mode.options.*member).get(); },
      [member](ModeState& mode, Value value) { mode.options.*member = value; });
}

std::optional<c10::DeviceType> device_type(const std::optional<std::string>& name) {
  if (!name) {
    return std::nullopt;
  }
  try {
    return c10::Device(*name).type();
  } catch (const c10::Error&) {
    TORCH_CHECK_VALUE(false, "prefer_device_type: there is no device '", *name, "'");
  }
}

ModePtr require_mode(const at::Tensor& tensor) {
  ModePtr mode = mode_of_any(tensor);
  TORCH_CHECK_VALUE(mode, "expected a fake tensor");
  return mode;
}

void bind_state(py::module_& module) {
  py::enum_<RealTensors>(module, "RealTensors")
      .value("AMONG_THEMSELVES", RealTensors::kAmongThemselves)
      .value("REFUSED", RealTensors::kRefused)
      .value("CONVERTED", RealTensors::kConverted);
  py::class_<ModeState, ModePtr> state(module, "ModeState");
  state
      .def(
          py::init([](int64_t known_values,
                      bool exclusive,
                      std::shared_ptr<CardMemory> memory,
                      const std::optional<py::object>& stand_ins) {
            FakeModeOptions options;
            options.known_values = known_values;
            options.exclusive = exclusive;
            options.drawn_values = exclusive ? 0 : options.drawn_values.get();
            options.storage_observer = std::move(memory);
            options.stand_ins = stand_ins ? python_stand_ins(*stand_ins) : nullptr;
            return c10::make_intrusive<ModeState>(std::move(options));
          }),
          py::kw_only(),
          py::arg("known_values"),
          py::arg("exclusive") = false,
          py::arg("memory") = nullptr,
          py::arg("stand_ins") = py::none())
      .def_property_readonly("has_stand_ins", [](const ModeState& mode) { return mode.options.stand_ins != nullptr; })
      .def_property_readonly("address", [](const ModeState& mode) { return reinterpret_cast<uintptr_t>(&mode); })
      .def_property_readonly("exclusive", [](const ModeState& mode) { return mode.options.exclusive; })
      .def_property(
          "epoch",
          [](const ModeState& mode) { return mode.epoch.get(); },
          [](ModeState& mode, int64_t epoch) { mode.epoch = epoch; })
      .def_property(
          "cache_enabled",
          [](const ModeState& mode) { return mode.cache.is_on(); },
          [](ModeState& mode, bool enabled) { mode.cache.turn(enabled); })
      .def_property(
          "prefer_device_type",
          [](const ModeState& mode) -> std::optional<std::string> {
            const std::optional<c10::DeviceType> type = mode.options.prefer_device_type;
            return type ? std::optional(c10::DeviceTypeName(*type, /*lower_case=*/true)) : std::nullopt;
          },
          [](ModeState& mode, const std::optional<std::string>& name) {
            mode.options.prefer_device_type = device_type(name);
          });
  bind_option(state, "fake_cuda", &FakeModeOptions::fake_cuda);
  bind_option(state, "known_values", &FakeModeOptions::known_values);
  bind_option(state, "known_from_factories", &FakeModeOptions::known_from_factories);
  bind_option(state, "propagate_real_tensors", &FakeModeOptions::propagate_real_tensors);
  bind_option(state, "real_tensors", &FakeModeOptions::real_tensors);
  bind_option(state, "allow_fallback_kernels", &FakeModeOptions::allow_fallback_kernels);
  bind_option(state, "distinct_tensors_differ", &FakeModeOptions::distinct_tensors_differ);
  bind_option(state, "selects_all", &FakeModeOptions::selects_all);
  bind_option(state, "allow_meta", &FakeModeOptions::allow_meta);
  bind_option(state, "drawn_values", &FakeModeOptions::drawn_values);
  bind_option(state, "assumes_valid", &FakeModeOptions::assumes_valid);
  bind_option(state, "cards", &FakeModeOptions::cards);
  bind_option(state, "capability", &FakeModeOptions::capability);
}

}  // namespace

// Methods are bound as functions of a reference, so that None raises a TypeError instead of being a null `this`.
void bind_mode(py::module_& module) {
  bind_state(module);
  py::class_<EnteredFakeMode>(module, "EnteredFakeMode")
      .def(
          py::init([](ModePtr state) { return std::make_unique<EnteredFakeMode>(std::move(state)); }),
          py::arg("state").none(false))
      // `show` is called with each operator of the scope; None for no function, even if the outer scope has one.
      .def(
          py::init([](ModePtr state, const std::optional<py::function>& show) {
            return std::make_unique<EnteredFakeMode>(std::move(state), show ? python_trace(*show) : nullptr);
          }),
          py::arg("state").none(false),
          py::arg("show"))
      // The same with a WorkMeter instead of a function.
      .def(
          py::init([](ModePtr state, std::shared_ptr<work::WorkMeter> meter) {
            return std::make_unique<EnteredFakeMode>(std::move(state), std::move(meter));
          }),
          py::arg("state").none(false),
          py::arg("meter").none(false))
      .def("leave", [](EnteredFakeMode& self) { self.leave(); });
  py::class_<EnteredNoFakeMode>(module, "EnteredNoFakeMode")
      .def(py::init([] { return std::make_unique<EnteredNoFakeMode>(); }))
      .def("leave", [](EnteredNoFakeMode& self) { self.leave(); });
  py::class_<EnteredValidInput>(module, "EnteredValidInput")
      .def(py::init([](int hold) { return std::make_unique<EnteredValidInput>(hold); }), py::arg("hold"))
      .def("leave", [](EnteredValidInput& self) { self.leave(); });
  py::class_<EnteredFactorsAlone>(module, "EnteredFactorsAlone")
      .def(py::init([] { return std::make_unique<EnteredFactorsAlone>(); }))
      .def("leave", [](EnteredFactorsAlone& self) { self.leave(); });
  py::class_<EnteredKernel>(module, "EnteredKernel")
      .def(py::init([] { return std::make_unique<EnteredKernel>(); }))
      .def("leave", [](EnteredKernel& self) { self.leave(); });
  module.def("in_kernel", &InKernel::active);
  module.def("in_fake_mode", &in_fake_mode);
  module.def("current_mode", [] { return current_mode(); });
  module.def("mode_of", &require_mode, py::arg("fake"));
  module.def("real_tensors_override", &real_tensors_override);
  module.def("set_real_tensors_override", &set_real_tensors_override, py::arg("what"));
}

}  // namespace torchfake
