// Functions on tensors.
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>
#include <torchfake/dispatch/known_values.h>
#include <torchfake/dispatch/native_table.h>
#include <torchfake/torchfake.h>

#include "bindings.h"

namespace torchfake {

namespace {

// Whether the tensor is a fake itself, not a wrapper around one.
bool is_plain_fake(const at::Tensor& tensor) {
  return tensor.defined() && as_fake(tensor) != nullptr;
}

// Whether the values of a fake are known, however many they are.
bool is_known(const at::Tensor& tensor) {
  const FakeTensorImpl* fake = as_fake(tensor);
  return fake != nullptr && known_tensor(*fake, std::numeric_limits<int64_t>::max()).has_value();
}

}  // namespace

void bind_tensors(pybind11::module_& module) {
  namespace py = pybind11;
  module.def("is_fake", &is_fake, py::arg("tensor"));
  module.def("is_plain_fake", &is_plain_fake, py::arg("tensor"));
  module.def("is_known", &is_known, py::arg("fake"));
  module.def(
      "forget_values", [](uintptr_t storage) { forget_known_bytes(reinterpret_cast<c10::StorageImpl*>(storage)); });
  module.def("lift", [](const at::Tensor& real) {
    const ModePtr mode = current_mode();
    TORCH_CHECK_VALUE(mode, "lift: not in a fake mode");
    return lift(real, mode, /*copy=*/true);
  });
  module.def("list_native_kernels", &list_native_kernels);
  module.def("meta_like", torch::wrap_pybind_function(&meta_like), py::arg("fake"));
  module.def("to_fake", torch::wrap_pybind_function(&to_fake), py::arg("tensor"), py::arg("device") = py::none());
  module.def("fake_device", torch::wrap_pybind_function(&fake_device), py::arg("fake"));
}

}  // namespace torchfake
