// What Python knows of operators that somebody defined.
#include <torch/csrc/utils/pybind.h>

#include <torchfake/dispatch/meta_call.h>

#include "bindings.h"

namespace torchfake {

namespace {

PyObject* g_has_fake_impl = nullptr;  // a function of the operator's name; never dropped

bool find_fake_impl(const c10::OperatorHandle& op) {
  pybind11::gil_scoped_acquire gil;
  return pybind11::cast<bool>(pybind11::handle(g_has_fake_impl)(c10::toString(op.operator_name())));
}

}  // namespace

void bind_custom_ops(pybind11::module_& module) {
  module.def("_set_fake_impl_finder", [](pybind11::object has_fake_impl) {
    g_has_fake_impl = has_fake_impl.release().ptr();
    set_fake_impl_finder(&find_fake_impl);
  });
}

}  // namespace torchfake
