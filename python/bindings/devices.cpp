// Absent devices: Python's own initialisation of them is turned off, and its error kept for real tensors.
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/device_lazy_init.h>
#include <torch/csrc/utils/pybind.h>
#include <torchfake/devices/absent_devices.h>

#include "bindings.h"

namespace torchfake {

namespace {

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

}  // namespace

void bind_devices(pybind11::module_& module) {
  module.def("_stand_in_for_absent_devices", [] {
    for (const c10::DeviceType type : absent_device_types()) {
      if (torch::utils::is_device_lazy_init_supported(type)) {
        torch::utils::set_requires_device_init(type, false);
      }
    }
    set_absent_device_hook(&raise_as_uninitialised);
  });
}

}  // namespace torchfake
