// Absent devices: Python's own initialisation of them is turned off, and its error kept for real tensors.
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/device_lazy_init.h>
#include <torch/csrc/utils/pybind.h>
#include <torchfake/core/activation.h>
#include <torchfake/core/errors.h>
#include <torchfake/core/fake_tensor_impl.h>
#include <torchfake/devices/absent_devices.h>

#include <limits>

#include "bindings.h"

namespace torchfake {

namespace {

// The type that `name` names: "cuda", "cuda:1". Throws c10::ValueError for a name of none.
c10::DeviceType type_named(const std::string& name) {
  try {
    return c10::Device(name).type();
  } catch (const c10::Error&) {
    TORCH_CHECK_VALUE(false, "no device is called '", name, "'");
  }
}

// torch.cuda._lazy_init() and its like raise what a program without torchfake would have seen.
void raise_as_uninitialised(c10::DeviceType type) {
  if (Py_IsInitialized() == 0) {
    return;
  }
  pybind11::gil_scoped_acquire gil;
  if (!torch::utils::is_device_lazy_init_supported(type)) {
    return;
  }
  const std::string module = "torch." + c10::DeviceTypeName(type, /*lower_case=*/true);
  try {
    pybind11::module_::import(module.c_str()).attr("_lazy_init")();
  } catch (pybind11::error_already_set& error) {
    error.restore();
    python_error carrier;
    carrier.persist();
    throw carrier;
  }
}

// Python's initialisation of absent devices, left out while there are fakes: those outside the mode move between devices
// too. What it would have raised for a real tensor comes from raise_as_uninitialised().
void set_initialisation(bool required) {
  for (const c10::DeviceType type : {c10::kCUDA, c10::kXPU, c10::kHPU, c10::kMTIA}) {
    if (is_absent(type)) {
      torch::utils::set_requires_device_init(type, required);
    }
  }
}

// A backend of somebody else's: its error cannot be kept (it may register a fallback of its own), so its initialisation
// is left out only while a thread is in a mode.
void set_initialisation_of_others(bool required) {
  if (is_absent(c10::kPrivateUse1)) {
    torch::utils::set_requires_device_init(c10::kPrivateUse1, required);
  }
}

}  // namespace

void bind_devices(pybind11::module_& module) {
  set_absent_device_hook(&raise_as_uninitialised);
  static const RegisterChange initialisation(
      Span::kWhileFakes, {[] { set_initialisation(false); }, [] { set_initialisation(true); }});
  static const RegisterChange initialisation_of_others(
      Span::kWhileEntered, {[] { set_initialisation_of_others(false); }, [] { set_initialisation_of_others(true); }});
  module.def("is_absent", [](const std::string& type) { return is_absent(type_named(type)); }, pybind11::arg("type"));
  module.def(
      "default_generator",
      torch::wrap_pybind_function(
          [](c10::Device device) { return at_the_boundary([&] { return default_claimed_generator(device); }); }),
      pybind11::arg("device"));
  // Makes `index` the current device of an absent type, on this thread; None leaves it. Returns what it was.
  module.def(
      "exchange_device",
      [](const std::string& type, std::optional<int> index) {
        const c10::DeviceType device_type = type_named(type);
        TORCH_CHECK_VALUE(
            !index || (*index >= 0 && *index < std::numeric_limits<c10::DeviceIndex>::max()),
            "exchange_device: indices from 0 to 126 can be claimed, got ",
            index.value_or(0));
        const auto* guard = c10::impl::getDeviceGuardImpl(device_type);
        const c10::Device before = guard->getDevice();
        if (index) {
          guard->setDevice(normalize_device(c10::Device(device_type, static_cast<c10::DeviceIndex>(*index))));
        }
        return static_cast<int>(before.index());
      },
      pybind11::arg("type"),
      pybind11::arg("index"));
}

}  // namespace torchfake
