// Converts errors of the engine to Python exceptions, whichever function of PyTorch they propagate through.
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
  TORCH_CHECK_TYPE(PyExceptionInstance_Check(exception.ptr()), "the exception factory did not return an exception");
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
  // PyTorch's C++ exception for a Python error, which autograd's threads and the dispatcher pass on.
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
