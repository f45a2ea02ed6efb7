// Functions on tensors.
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/utils/python_symnode.h>
#include <torchfake/convert/converter.h>
#include <torchfake/core/layout_fake.h>
#include <torchfake/core/plain_cpu.h>
#include <torchfake/core/to_fake.h>
#include <torchfake/rules/cudnn_recurrent.h>
#include <torchfake/rules/native_table.h>
#include <torchfake/torchfake.h>
#include <torchfake/values/constants.h>
#include <torchfake/values/known_values.h>

#include <limits>

#include "bindings.h"

namespace torchfake {

namespace {

// Whether the tensor is a fake itself, not a wrapper around one.
bool is_plain_fake(const at::Tensor& tensor) {
  return is_any_fake(tensor);
}

// Whether the values of a fake are known, whatever their number.
bool has_known_values(const at::Tensor& tensor) {
  const FakeTensorImpl* fake = as_fake(tensor);
  return fake != nullptr && is_in_memory(*fake);
}

// The values of a fake if its mode tracks them: a copy, or the tensor that the engine updates.
std::optional<at::Tensor> known_values_of(const at::Tensor& tensor, bool copy) {
  const FakeTensorImpl* fake = as_fake(tensor);
  std::optional<at::Tensor> values =
      fake == nullptr ? std::nullopt : known_tensor(*fake, value_limit(fake->mode()->options));
  if (values && copy) {
    {
      PlainCpu plain;
      values = values->clone();
    }
    if (fake->has_storage()) {
      remember_copy(tensor, *values);
    }
  }
  return values;
}

// The constant of a fake in PyTorch's sense: a copy of its values, or None.
std::optional<at::Tensor> constant_of_fake(const at::Tensor& tensor) {
  const FakeTensorImpl* fake = as_fake(tensor);
  if (fake == nullptr) {
    return std::nullopt;
  }
  const FakeModeOptions& options = fake->mode()->options;
  if (options.propagate_real_tensors && (!is_constant(*fake) || fake->numel() > options.known_values)) {
    return std::nullopt;
  }
  // Values that were given explicitly are constants, whatever their number.
  const bool is_given = fake->has_storage() && fills_storage(*fake) && is_in_memory(*fake);
  std::optional<at::Tensor> values =
      known_tensor(*fake, is_given ? std::numeric_limits<int64_t>::max() : value_limit(options));
  if (values) {
    values = copy_of_values(*fake, *values);
    if (fake->has_storage()) {
      remember_copy(tensor, *values);
    }
  }
  return values;
}

// Throws c10::ValueError if no fake uses the storage.
void require_fake(const c10::Storage& storage, const char* function) {
  TORCH_CHECK_VALUE(
      claimed_device_of(storage.unsafeGetStorageImpl()),
      function,
      ": expected the storage of a fake tensor, got that of a real one");
}

void check_weights(const std::vector<at::Tensor>& weights, int64_t mode, int64_t hidden_size, int64_t layers) {
  TORCH_CHECK_VALUE(mode >= 0 && mode <= 3, "flatten_weights: expected a network from 0 to 3, got ", mode);
  constexpr int64_t kMost = int64_t{1} << 20;  // so that their product does not overflow
  TORCH_CHECK_VALUE(
      hidden_size > 0 && hidden_size < kMost && layers > 0 && layers < kMost,
      "flatten_weights: expected a hidden size and a number of layers, got ",
      hidden_size,
      " and ",
      layers);
  TORCH_CHECK_VALUE(!weights.empty(), "flatten_weights: expected weights, got none");
  int64_t numel = 0;
  for (const at::Tensor& weight : weights) {
    TORCH_CHECK_VALUE(
        weight.defined() && as_fake(weight) != nullptr, "flatten_weights: expected fake tensors, got a real one");
    TORCH_CHECK_VALUE(
        (weight.dim() == 1 || weight.dim() == 2) && weight.dtype() == weights[0].dtype() &&
            weight.device() == weights[0].device(),
        "flatten_weights: expected matrices and biases of one dtype on one device");
    numel += weight.dim() == 1 ? weight.numel() : 0;
  }
  TORCH_CHECK_VALUE(
      numel <= layers * 2 * 4 * hidden_size, "flatten_weights: the biases have more elements than the layers");
}

ValueMemos::Kind memo_kind(const std::string& kind) {
  static const std::unordered_map<std::string, ValueMemos::Kind> kKinds = {
      {"nonzero", ValueMemos::kNonzero},
      {"item", ValueMemos::kItem},
      {"unique", ValueMemos::kUnique},
      {"unique_consecutive", ValueMemos::kUniqueConsecutive}};
  const auto found = kKinds.find(kind);
  TORCH_CHECK_VALUE(
      found != kKinds.end(), "memo: expected nonzero, item, unique or unique_consecutive, got '", kind, "'");
  return found->second;
}

std::optional<c10::Scalar> memo(const at::Tensor& tensor, const std::string& kind) {
  const FakeTensorImpl* fake = as_fake(tensor);
  return fake == nullptr ? std::nullopt : fake->memo(memo_kind(kind));
}

c10::Scalar scalar_of(const py::handle& value) {
  if (torch::is_symint(value)) {
    return value.cast<c10::SymInt>();
  }
  if (torch::is_symfloat(value)) {
    return value.cast<c10::SymFloat>();
  }
  if (torch::is_symbool(value)) {
    return value.cast<c10::SymBool>();
  }
  if (py::isinstance<py::bool_>(value)) {
    return value.cast<bool>();
  }
  return py::isinstance<py::int_>(value) ? c10::Scalar(value.cast<int64_t>()) : c10::Scalar(value.cast<double>());
}

void set_memo(const at::Tensor& tensor, const std::string& kind, const py::handle& number) {
  const c10::Scalar value = scalar_of(number);
  FakeTensorImpl* fake = as_fake(tensor);
  TORCH_CHECK_TYPE(fake != nullptr, "set_memo: expected a fake tensor");
  fake->set_memo(memo_kind(kind), value);
}

// Values that are given explicitly are kept even beyond the mode's limit.
void keep_values(const at::Tensor& fake, const at::Tensor& real) {
  const FakeTensorImpl* impl = as_fake(fake);
  const bool takes_values =
      impl != nullptr && !impl->has_symbolic_sizes_strides() && fills_storage(*impl) && !is_in_memory(*impl);
  if (takes_values && has_values(real) && real.sizes() == impl->sizes() && real.dtype() == impl->dtype()) {
    const PlainCpu plain;
    make_known(*impl, real.clone());
  }
}

}  // namespace

void bind_tensors(pybind11::module_& module) {
  namespace py = pybind11;
  module.def("is_fake", &is_fake, py::arg("tensor"));
  module.def("is_plain_fake", &is_plain_fake, py::arg("tensor"));
  module.def("is_known", &has_known_values, py::arg("fake"));
  module.def(
      "flatten_weights",
      torch::wrap_pybind_function(
          [](const std::vector<at::Tensor>& weights, int64_t mode, int64_t hidden_size, int64_t layers) {
            check_weights(weights, mode, hidden_size, layers);
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
      torch::wrap_pybind_function([](const c10::Storage& storage, size_t nbytes, c10::Device device) {
        require_fake(storage, "sibling_storage");
        TORCH_CHECK_VALUE(
            nbytes <= static_cast<size_t>(std::numeric_limits<int64_t>::max()), "sibling_storage: too many bytes");
        return at_the_boundary([&] { return sibling_storage(storage, nbytes, normalize_device(device)); });
      }),
      py::arg("storage"),
      py::arg("nbytes"),
      py::arg("device"));
  module.def(
      "resize_storage",
      torch::wrap_pybind_function([](const c10::Storage& storage, size_t nbytes) {
        require_fake(storage, "resize_storage");
        TORCH_CHECK_VALUE(
            nbytes <= static_cast<size_t>(std::numeric_limits<int64_t>::max()), "resize_storage: too many bytes");
        resize_storage(storage.unsafeGetStorageImpl(), nbytes);
      }),
      py::arg("storage"),
      py::arg("nbytes"));
  module.def("forget_values", &forget_values_of, py::arg("tensor"));
  module.def(
      "forget_values",
      [](const c10::Storage& storage) {
        if (claimed_device_of(storage.unsafeGetStorageImpl())) {
          forget_known_bytes(storage.unsafeGetStorageImpl());
        }
      },
      py::arg("storage"));
  module.def(
      "lift",
      torch::wrap_pybind_function([](const at::Tensor& real) {
        const ModePtr mode = current_mode();
        TORCH_CHECK_VALUE(mode, "lift: not in a fake mode");
        return at_the_boundary([&] { return lift(real, mode, /*copy=*/true); });
      }),
      py::arg("real"));
  module.def(
      "from_tensor",
      torch::wrap_pybind_function([](const at::Tensor& tensor, const ModePtr& mode) {
        return at_the_boundary([&] { return from_tensor(tensor, mode); });
      }),
      py::arg("tensor"),
      py::arg("mode").none(false));
  module.def(
      "from_meta_and_device",
      torch::wrap_pybind_function([](const at::Tensor& meta, c10::Device device, const ModePtr& mode) {
        return at_the_boundary([&] { return from_meta_and_device(meta, device, mode); });
      }),
      py::arg("meta"),
      py::arg("device"),
      py::arg("mode").none(false));
  module.def(
      "lift_constant",
      torch::wrap_pybind_function([](const at::Tensor& real, const ModePtr& mode) {
        return at_the_boundary([&] {
          if (!real.defined() || is_any_fake(real)) {
            return from_tensor(real, mode);  // the same fake, or the conversion of another mode's fake
          }
          at::Tensor fake = lift(real, mode, /*copy=*/true);
          keep_values(fake, real);
          remember_converted(real, fake);
          return fake;
        });
      }),
      py::arg("real"),
      py::arg("mode").none(false));
  module.def("keep_values", &keep_values, py::arg("fake"), py::arg("real"));
  module.def(
      "find_converted",
      [](const at::Tensor& tensor, const ModePtr& mode) -> std::optional<at::Tensor> {
        at::Tensor found = find_converted(tensor, mode);
        return found.defined() ? std::optional(std::move(found)) : std::nullopt;
      },
      py::arg("tensor"),
      py::arg("mode").none(false));
  module.def("remember_converted", &remember_converted, py::arg("tensor"), py::arg("fake"));
  module.def(
      "to_meta",
      torch::wrap_pybind_function(
          [](const at::Tensor& fake) { return at_the_boundary([&] { return to_meta(fake); }); }),
      py::arg("fake"));
  module.def(
      "to_fake_of",
      torch::wrap_pybind_function([](const at::Tensor& tensor, const ModePtr& mode, c10::Device device) {
        return at_the_boundary([&] { return make_fake_of(tensor, mode, normalize_device(device)); });
      }),
      py::arg("tensor"),
      py::arg("mode").none(false),
      py::arg("device"));
  module.def("known_values_of", &known_values_of, py::arg("fake"), py::arg("copy"));
  module.def("constant_of", &constant_of_fake, py::arg("fake"));
  module.def("memo", &memo, py::arg("fake"), py::arg("kind"));
  module.def("set_memo", &set_memo, py::arg("fake"), py::arg("kind"), py::arg("value"));
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
