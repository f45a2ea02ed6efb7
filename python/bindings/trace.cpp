// Logs every operator of a mode as a line of text.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>
#include <torchfake/core/fake_mode.h>
#include <torchfake/core/fake_tensor_impl.h>

#include "bindings.h"

namespace torchfake {

namespace {

void describe(std::ostream& out, const c10::IValue& value);

void describe(std::ostream& out, const at::Tensor& tensor) {
  if (!tensor.defined()) {
    out << "undefined";
    return;
  }
  out << c10::toString(tensor.scalar_type()) << tensor.sizes() << "@" << tensor.device();
}

void describe_all(std::ostream& out, c10::ArrayRef<c10::IValue> values) {
  const char* separator = "";
  for (const c10::IValue& value : values) {
    out << separator;
    describe(out, value);
    separator = ", ";
  }
}

void describe(std::ostream& out, const c10::IValue& value) {
  if (value.isTensor()) {
    describe(out, value.toTensor());
  } else if (value.isList()) {
    out << "[";
    describe_all(out, value.toListRef());
    out << "]";
  } else if (value.isGenerator()) {
    out << "generator";
  } else {
    out << value;
  }
}

// Passes each line to a Python function: "aten::add.Tensor(Float[2, 3]@cuda:0, 1, 1) -> Float[2, 3]@cuda:0".
class PythonTrace final : public OpRecorder {
 public:
  explicit PythonTrace(pybind11::function show) : show_(show.release().ptr()) {}
  ~PythonTrace() override {
    if (Py_IsInitialized() != 0) {
      pybind11::gil_scoped_acquire gil;
      Py_DECREF(show_);
    }
  }
  PythonTrace(const PythonTrace&) = delete;
  PythonTrace& operator=(const PythonTrace&) = delete;
  PythonTrace(PythonTrace&&) = delete;
  PythonTrace& operator=(PythonTrace&&) = delete;

  void on_op(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments, c10::ArrayRef<c10::IValue> outputs)
      override {
    std::ostringstream line;
    line << op.operator_name() << "(";
    describe_all(line, arguments);
    line << ") -> ";
    describe_all(line, outputs);
    pybind11::gil_scoped_acquire gil;
    pybind11::reinterpret_borrow<pybind11::function>(show_)(line.str());
  }

 private:
  PyObject* show_;
};

}  // namespace

std::shared_ptr<OpRecorder> python_trace(pybind11::function show) {
  return std::make_shared<PythonTrace>(std::move(show));
}

}  // namespace torchfake
