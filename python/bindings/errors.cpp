// Errors of the engine as Python exceptions, whichever of PyTorch's functions they pass through.
#include <torch/csrc/Exceptions.h>
#include <torchfake/core/errors.h>

#include "bindings.h"

namespace torchfake {

namespace {

// Set once by torchfake.errors; called as factory(kind, op, message), returns the exception. Never freed.
PyObject* g_make_exception = nullptr;

void throw_as_python(const FakeTensorError& error) {
  if (g_make_exception == nullptr || Py_IsInitialized() == 0) {
    return;
  }
  pybind11::gil_scoped_acquire gil;
  pybind11::object exception = pybind11::reinterpret_borrow<pybind11::object>(g_make_exception)(
      static_cast<int>(error.kind()), error.op(), error.what_without_backtrace());
  TORCH_CHECK_TYPE(PyExceptionInstance_Check(exception.ptr()), "the factory of exceptions returned something else");
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
  // PyTorch's carrier for a Python error: it survives autograd's threads and every layer of the dispatcher.
  python_error carrier;
  carrier.persist();
  throw carrier;
}

}  // namespace

void bind_errors(pybind11::module_& module) {
  module.def("_set_exception_factory", [](pybind11::function factory) {
    Py_XDECREF(g_make_exception);
    g_make_exception = factory.release().ptr();
    set_error_hook(&throw_as_python);
  });
}

}  // namespace torchfake
