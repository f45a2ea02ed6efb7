// Absent devices: turns off their initialisation by Python, and raises its error for real tensors.
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <pybind11/stl.h>
#include <torch/csrc/Event.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/Stream.h>
#include <torch/csrc/utils/device_lazy_init.h>
#include <torch/csrc/utils/pybind.h>
#include <torchfake/core/activation.h>
#include <torchfake/core/errors.h>
#include <torchfake/core/fake_tensor_impl.h>
#include <torchfake/devices/absent_devices.h>
#include <torchfake/devices/absent_libraries.h>

#include <limits>

#include "bindings.h"

namespace torchfake {

namespace {

// The device type in `name` ("cuda", "cuda:1"). Throws c10::ValueError for an unknown name.
c10::DeviceType type_named(const std::string& name) {
  try {
    return c10::Device(name).type();
  } catch (const c10::Error&) {
    TORCH_CHECK_VALUE(false, "there is no device '", name, "'");
  }
}

// Calls torch.cuda._lazy_init() or its equivalent, which raises the error that PyTorch raises without torchfake.
void raise_as_uninitialised(c10::DeviceType type) {
  if (Py_IsInitialized() == 0) {
    return;
  }
  pybind11::gil_scoped_acquire gil;
  if (!torch::utils::is_device_lazy_init_supported(type)) {
    return;
  }
  const std::string module = "torch." + c10::DeviceTypeName(type, /*lower_case=*/true);
  try {
    pybind11::module_::import(module.c_str()).attr("_lazy_init")();
  } catch (pybind11::error_already_set& error) {
    error.restore();
    python_error carrier;
    carrier.persist();
    throw carrier;
  }
}

// Whether Python initialises absent devices. It does not while fakes exist, since they are also moved between devices
// outside the mode. For real tensors raise_as_uninitialised() raises its error.
void set_initialisation(bool required) {
  for (const c10::DeviceType type : {c10::kCUDA, c10::kXPU, c10::kHPU, c10::kMTIA}) {
    if (is_absent(type)) {
      torch::utils::set_requires_device_init(type, required);
    }
  }
}

// The same for third-party backends. We cannot raise their errors, because they may register fallbacks of their own, so
// their initialisation is turned off only while a thread is in a mode.
void set_initialisation_of_others(bool required) {
  if (is_absent(c10::kPrivateUse1)) {
    torch::utils::set_requires_device_init(c10::kPrivateUse1, required);
  }
}

// An object of a subtype of PyTorch's own class, created by that class itself. Python's `base.__new__(type)` refuses a
// type with another C class in between: `torch.cuda.Stream` in a PyTorch built with CUDA, which calls the driver.
pybind11::object new_as(
    PyTypeObject* base,
    const pybind11::type& type,
    const pybind11::args& args,
    const pybind11::kwargs& kwargs) {
  auto* made_type = reinterpret_cast<PyTypeObject*>(type.ptr());
  TORCH_CHECK_TYPE(
      base != nullptr && PyType_IsSubtype(made_type, base) != 0,
      "expected a subclass of ",
      base == nullptr ? "a class that this PyTorch lacks" : base->tp_name,
      ", got ",
      made_type->tp_name);
  PyObject* made = base->tp_new(made_type, args.ptr(), kwargs.ptr());
  if (made == nullptr) {
    throw pybind11::error_already_set();
  }
  return pybind11::reinterpret_steal<pybind11::object>(made);
}

}  // namespace

void bind_devices(pybind11::module_& module) {
  set_absent_device_hook(&raise_as_uninitialised);
  static const RegisterChange initialisation(
      Span::kWhileFakes, {[] { set_initialisation(false); }, [] { set_initialisation(true); }});
  // Fakes may outlive a deactivation together with their guards, but Python's errors are restored immediately.
  static const RegisterChange initialisation_again(
      Span::kOnceActive, {[] { set_initialisation(!fakes_exist()); }, [] { set_initialisation(true); }});
  static const RegisterChange initialisation_of_others(
      Span::kWhileEntered, {[] { set_initialisation_of_others(false); }, [] { set_initialisation_of_others(true); }});
  module.def("is_absent", [](const std::string& type) { return is_absent(type_named(type)); }, pybind11::arg("type"));
  module.def(
      "default_generator",
      torch::wrap_pybind_function(
          [](c10::Device device) { return at_the_boundary([&] { return default_claimed_generator(device); }); }),
      pybind11::arg("device"));
  module.def("new_stream", [](const pybind11::type& type, const pybind11::args& args, const pybind11::kwargs& kwargs) {
    return new_as(THPStreamClass, type, args, kwargs);
  });
  module.def("new_event", [](const pybind11::type& type, const pybind11::args& args, const pybind11::kwargs& kwargs) {
    return new_as(THPEventClass, type, args, kwargs);
  });
  // The value of a fake with one element while the engine is disabled, as when PyTorch reads the elements of
  // torch.tensor([x]); None while it is enabled.
  module.def(
      "number_with_engine_off",
      torch::wrap_pybind_function([](const at::Tensor& fake) -> std::optional<at::Scalar> {
        if (!c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::Fake)) {
          return std::nullopt;
        }
        return read_number(fake);
      }),
      pybind11::arg("fake"));
  // Sets the current device of an absent type on this thread, unless `index` is None. Returns the previous index.
  module.def(
      "exchange_device",
      [](const std::string& type, std::optional<int> index) {
        const c10::DeviceType device_type = type_named(type);
        TORCH_CHECK_VALUE(
            !index || (*index >= 0 && *index < std::numeric_limits<c10::DeviceIndex>::max()),
            "exchange_device: expected an index from 0 to 126, got ",
            index.value_or(0));
        const auto* guard = c10::impl::getDeviceGuardImpl(device_type);
        const c10::Device before = guard->getDevice();
        if (index) {
          guard->setDevice(normalize_device(c10::Device(device_type, static_cast<c10::DeviceIndex>(*index))));
        }
        return static_cast<int>(before.index());
      },
      pybind11::arg("type"),
      pybind11::arg("index"));
  // Makes a stream of an absent type current on this thread, unless `number` is None. Returns the previous number.
  module.def(
      "exchange_stream",
      [](const std::string& type, int index, std::optional<c10::StreamId> number) {
        TORCH_CHECK_VALUE(
            index >= 0 && index < std::numeric_limits<c10::DeviceIndex>::max(),
            "exchange_stream: expected an index from 0 to 126, got ",
            index);
        const c10::Device device(type_named(type), static_cast<c10::DeviceIndex>(index));
        const auto* guard = c10::impl::getDeviceGuardImpl(device.type());
        return number ? guard->exchangeStream(c10::Stream(c10::Stream::UNSAFE, device, *number)).id()
                      : guard->getStream(device).id();
      },
      pybind11::arg("type"),
      pybind11::arg("index"),
      pybind11::arg("number"));
  // Loads a library of operators compiled for CUDA into a PyTorch without CUDA. Raises RuntimeError.
  module.def(
      "load_library_compiled_for_cuda",
      [](const std::string& path) { load_library_compiled_for_cuda(path); },
      pybind11::arg("path"));
  // Restores the previous current device, whether the mode has it or not.
  module.def(
      "restore_device",
      [](const std::string& type, int index) {
        const c10::DeviceType device_type = type_named(type);
        TORCH_CHECK_VALUE(
            index >= 0 && index < std::numeric_limits<c10::DeviceIndex>::max(),
            "restore_device: expected an index from 0 to 126, got ",
            index);
        c10::impl::getDeviceGuardImpl(device_type)
            ->setDevice(c10::Device(device_type, static_cast<c10::DeviceIndex>(index)));
      },
      pybind11::arg("type"),
      pybind11::arg("index"));
}

}  // namespace torchfake
