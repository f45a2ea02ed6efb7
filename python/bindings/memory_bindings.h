// Adds the bindings of the memory model to the module.
#pragma once

#include <pybind11/pybind11.h>

namespace torchfake {

void bind_memory(pybind11::module_& module);
void bind_memory_model(pybind11::module_& module);

}  // namespace torchfake
