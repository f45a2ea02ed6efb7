// Each function adds the bindings of one file to the module.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

namespace torchfake {

class OpRecorder;
class StandIns;

void bind_activation(pybind11::module_& module);
void bind_errors(pybind11::module_& module);
void bind_cache(pybind11::module_& module);
void bind_cards(pybind11::module_& module);
void bind_custom_ops(pybind11::module_& module);
void bind_devices(pybind11::module_& module);
void bind_mode(pybind11::module_& module);
void bind_tensors(pybind11::module_& module);
void bind_stand_in(pybind11::module_& module);
void bind_symbolic(pybind11::module_& module);
void bind_work(pybind11::module_& module);

// A recorder that passes each operator, as a line of text, to a Python function.
std::shared_ptr<OpRecorder> python_trace(pybind11::function show);

// Stand-ins implemented by a Python object, which chooses them (`choose`) and is notified of each (`hear(op, answer)`).
std::shared_ptr<StandIns> python_stand_ins(const pybind11::object& log);

}  // namespace torchfake
