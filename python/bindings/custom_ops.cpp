// Custom operators: whether one has a fake implementation registered in Python.
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <torchfake/dispatch/meta_call.h>

#include "bindings.h"

namespace torchfake {

namespace {

// Takes the operator's name. Never freed, since another thread may be calling it. Accessed with the GIL held.
PyObject* g_has_fake_impl = nullptr;

bool find_fake_impl(const c10::OperatorHandle& op) {
  if (Py_IsInitialized() == 0) {
    return false;
  }
  pybind11::gil_scoped_acquire gil;
  try {
    return pybind11::cast<bool>(pybind11::handle(g_has_fake_impl)(c10::toString(op.operator_name())));
  } catch (pybind11::error_already_set& error) {
    error.restore();
    python_error carrier;
    carrier.persist();
    throw carrier;
  }
}

}  // namespace

void bind_custom_ops(pybind11::module_& module) {
  module.def("_set_fake_impl_finder", [](pybind11::function has_fake_impl) {
    g_has_fake_impl = has_fake_impl.release().ptr();
    set_fake_impl_finder(&find_fake_impl);
  });
}

}  // namespace torchfake
