// What each binding file adds to the module.
#pragma once

#include <pybind11/pybind11.h>

namespace torchfake {

void bind_errors(pybind11::module_& module);
void bind_cache(pybind11::module_& module);
void bind_custom_ops(pybind11::module_& module);
void bind_devices(pybind11::module_& module);
void bind_mode(pybind11::module_& module);
void bind_tensors(pybind11::module_& module);
void bind_trace(pybind11::module_& module);

}  // namespace torchfake
