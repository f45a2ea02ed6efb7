// Activation: the replacements in Python are installed as the last of the changes to PyTorch.
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>
#include <torchfake/core/activation.h>

#include "bindings.h"

namespace torchfake {

namespace {

// The Python functions that install and remove the replacements. Never freed.
PyObject* g_install = nullptr;
PyObject* g_remove = nullptr;

void call(PyObject* function) {
  if (function == nullptr || Py_IsInitialized() == 0) {
    return;
  }
  pybind11::gil_scoped_acquire gil;
  if (PyObject* result = PyObject_CallNoArgs(function)) {
    Py_DECREF(result);
    return;
  }
  python_error carrier;
  carrier.persist();
  throw carrier;
}

// Releases the GIL while waiting: the thread that activates may need it.
void wait_without_gil(void (*wait)(void*), void* argument) {
  if (Py_IsInitialized() != 0 && PyGILState_Check() == 1) {
    pybind11::gil_scoped_release released;
    wait(argument);
  } else {
    wait(argument);
  }
}

}  // namespace

void bind_activation(pybind11::module_& module) {
  set_wait_hook(&wait_without_gil);
  module.def(
      "_set_front",
      [](pybind11::object install, pybind11::object remove) {
        TORCH_CHECK_VALUE(g_install == nullptr, "_set_front: the functions are already set");
        g_install = install.release().ptr();
        g_remove = remove.release().ptr();
        static const RegisterChange front(Span::kOnceActive, {[] { call(g_install); }, [] { call(g_remove); }});
      },
      pybind11::arg("install"),
      pybind11::arg("remove"));
  module.def("activate", torch::wrap_pybind_function(&activate));
  module.def("deactivate", torch::wrap_pybind_function(&deactivate));
  module.def("is_active", &is_active);
  module.def("fakes_exist", &fakes_exist);
  module.def("entered_modes", &entered_modes);
}

}  // namespace torchfake
