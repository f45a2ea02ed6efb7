// Converts errors of the engine to Python exceptions, whichever function of PyTorch they propagate through.
#include <torch/csrc/Exceptions.h>
#include <torchfake/core/errors.h>
#include <torchfake/core/kernel_failures.h>

#include "bindings.h"

namespace torchfake {

namespace {

// Set once by torchfake.errors; called as factory(kind, op, message), returns the exception. Never freed.
PyObject* g_make_exception = nullptr;
// Set once by torchfake.errors; called as describe(exception), returns None or (is_assertion, text). Never freed.
PyObject* g_describe_failure = nullptr;

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

// Takes the error that Python is raising on this thread; restores it on destruction unless dropped.
class RaisedError {
 public:
  RaisedError() {
    PyErr_Fetch(&type_, &value_, &traceback_);
    PyErr_NormalizeException(&type_, &value_, &traceback_);
    if (value_ != nullptr && traceback_ != nullptr) {
      PyException_SetTraceback(value_, traceback_);
    }
  }
  ~RaisedError() {
    PyErr_Restore(type_, value_, traceback_);
  }
  RaisedError(const RaisedError&) = delete;
  RaisedError& operator=(const RaisedError&) = delete;
  RaisedError(RaisedError&&) = delete;
  RaisedError& operator=(RaisedError&&) = delete;

  PyObject* value() const {
    return value_;
  }
  void drop() {
    Py_CLEAR(type_);
    Py_CLEAR(value_);
    Py_CLEAR(traceback_);
  }

 private:
  PyObject* type_ = nullptr;
  PyObject* value_ = nullptr;
  PyObject* traceback_ = nullptr;
};

std::optional<KernelFailure> read_kernel_failure(const std::exception& error) {
  const auto* thrown = dynamic_cast<const pybind11::error_already_set*>(&error);
  const auto* carrier = dynamic_cast<const python_error*>(&error);
  if ((thrown == nullptr && carrier == nullptr) || Py_IsInitialized() == 0) {
    return std::nullopt;
  }
  pybind11::gil_scoped_acquire gil;
  // The error is in PyTorch's exception, or still set in Python's error indicator.
  RaisedError raised;
  PyObject* exception = thrown != nullptr ? thrown->value().ptr() : carrier->value;
  if (exception == nullptr) {
    exception = raised.value();
  }
  if (thrown != nullptr && thrown->trace()) {
    PyException_SetTraceback(exception, thrown->trace().ptr());
  }
  if (exception == nullptr) {
    return std::nullopt;
  }
  const pybind11::object described = pybind11::handle(g_describe_failure)(pybind11::handle(exception));
  if (described.is_none()) {
    return std::nullopt;
  }
  const auto [is_assertion, text] = pybind11::cast<std::pair<bool, std::string>>(described);
  raised.drop();
  return KernelFailure{is_assertion, text};
}

}  // namespace

void bind_errors(pybind11::module_& module) {
  module.def("_set_exception_factory", [](pybind11::function factory) {
    Py_XDECREF(g_make_exception);
    g_make_exception = factory.release().ptr();
    set_error_hook(&throw_as_python);
  });
  module.def("_set_failure_describer", [](pybind11::function describe) {
    Py_XDECREF(g_describe_failure);
    g_describe_failure = describe.release().ptr();
    set_kernel_failure_reader(&read_kernel_failure);
  });
}

}  // namespace torchfake
