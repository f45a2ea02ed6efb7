// Functions on tensors.
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>
#include <torchfake/convert/converter.h>
#include <torchfake/convert/to_fake.h>
#include <torchfake/dispatch/known_values.h>
#include <torchfake/dispatch/native_table.h>
#include <torchfake/dispatch/plain_cpu.h>
#include <torchfake/rules/cudnn_recurrent.h>
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
  return fake != nullptr && is_in_memory(*fake);
}

// The values of a fake, where its mode knows them: a copy, or what stands behind the fake itself.
std::optional<at::Tensor> known_values_of(const at::Tensor& tensor, bool copy) {
  const FakeTensorImpl* fake = as_fake(tensor);
  std::optional<at::Tensor> values =
      fake == nullptr ? std::nullopt : known_tensor(*fake, value_limit(fake->mode()->options));
  if (values && copy) {
    PlainCpu plain;
    return values->clone();
  }
  return values;
}

std::optional<c10::Scalar> memo(const at::Tensor& tensor, const std::string& kind) {
  static const std::unordered_map<std::string, ValueMemos::Kind> kKinds = {
      {"nonzero", ValueMemos::kNonzero},
      {"item", ValueMemos::kItem},
      {"unique", ValueMemos::kUnique},
      {"unique_consecutive", ValueMemos::kUniqueConsecutive}};
  const FakeTensorImpl* fake = as_fake(tensor);
  return fake == nullptr ? std::nullopt : fake->memo(kKinds.at(kind));
}

}  // namespace

void bind_tensors(pybind11::module_& module) {
  namespace py = pybind11;
  module.def("is_fake", &is_fake, py::arg("tensor"));
  module.def("is_plain_fake", &is_plain_fake, py::arg("tensor"));
  module.def("is_known", &is_known, py::arg("fake"));
  module.def(
      "flatten_weights",
      torch::wrap_pybind_function(
          [](const std::vector<at::Tensor>& weights, int64_t mode, int64_t hidden_size, int64_t layers) {
            flatten_weights(weights, static_cast<Cudnn>(mode), hidden_size, layers);
          }),
      py::arg("weights"),
      py::arg("mode"),
      py::arg("hidden_size"),
      py::arg("layers"));
  module.def(
      "storage_device",
      [](const c10::Storage& storage) { return claimed_device_of(storage.unsafeGetStorageImpl()); },
      py::arg("storage"));
  module.def(
      "sibling_storage",
      [](const c10::Storage& storage, size_t nbytes, c10::Device device) {
        return sibling_storage(storage, nbytes, normalize_device(device));
      },
      py::arg("storage"),
      py::arg("nbytes"),
      py::arg("device"));
  module.def(
      "forget_values", [](uintptr_t storage) { forget_known_bytes(reinterpret_cast<c10::StorageImpl*>(storage)); });
  module.def("lift", [](const at::Tensor& real) {
    const ModePtr mode = current_mode();
    TORCH_CHECK_VALUE(mode, "lift: not in a fake mode");
    return lift(real, mode, /*copy=*/true);
  });
  module.def(
      "from_tensor",
      torch::wrap_pybind_function([](const at::Tensor& tensor, const ModePtr& mode) {
        return at_the_boundary([&] { return from_tensor(tensor, mode); });
      }),
      py::arg("tensor"),
      py::arg("mode"));
  module.def(
      "from_meta_and_device",
      torch::wrap_pybind_function([](const at::Tensor& meta, c10::Device device, const ModePtr& mode) {
        return at_the_boundary([&] { return from_meta_and_device(meta, device, mode); });
      }),
      py::arg("meta"),
      py::arg("device"),
      py::arg("mode"));
  module.def(
      "lift_constant",
      [](const at::Tensor& real, const ModePtr& mode) {
        return at_the_boundary([&] {
          at::Tensor fake = lift(real, mode, /*copy=*/true);
          remember_converted(real, fake);
          return fake;
        });
      },
      py::arg("real"),
      py::arg("mode"));
  module.def(
      "find_converted",
      [](const at::Tensor& tensor, const ModePtr& mode) -> std::optional<at::Tensor> {
        at::Tensor found = find_converted(tensor, mode);
        return found.defined() ? std::optional(std::move(found)) : std::nullopt;
      },
      py::arg("tensor"),
      py::arg("mode"));
  module.def("remember_converted", &remember_converted, py::arg("tensor"), py::arg("fake"));
  module.def("to_meta", &to_meta, py::arg("fake"));
  module.def("to_fake_of", &make_fake_of, py::arg("tensor"), py::arg("mode"), py::arg("device"));
  module.def("known_values_of", &known_values_of, py::arg("fake"), py::arg("copy"));
  module.def("memo", &memo, py::arg("fake"), py::arg("kind"));
  module.def("list_native_kernels", &list_native_kernels);
  module.def("meta_like", torch::wrap_pybind_function(&meta_like), py::arg("fake"));
  module.def(
      "to_fake",
      torch::wrap_pybind_function(static_cast<at::Tensor (*)(const at::Tensor&, std::optional<c10::Device>)>(&to_fake)),
      py::arg("tensor"),
      py::arg("device") = py::none());
  module.def("fake_device", torch::wrap_pybind_function(&fake_device), py::arg("fake"));
}

}  // namespace torchfake
