// Virtual cards: their memory, and the values that stand in for unknown ones.
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>
#include <torchfake/core/fake_mode.h>
#include <torchfake/core/fake_storage.h>
#include <torchfake/core/fake_tensor_impl.h>
#include <torchfake/devices/card_memory.h>
#include <torchfake/values/choosing_stand_ins.h>
#include <torchfake/values/collective_counts.h>
#include <torchfake/values/stand_in_answers.h>

#include "bindings.h"

namespace torchfake {

namespace {

namespace py = pybind11;

// Calls the methods of a Python object. An exception from it aborts the call.
class PythonStandIns final : public ChoosingStandIns {
 public:
  explicit PythonStandIns(const py::object& log) : log_(log.ptr()) {
    Py_INCREF(log_);
  }
  ~PythonStandIns() override {
    if (Py_IsInitialized() != 0) {
      py::gil_scoped_acquire gil;
      Py_DECREF(log_);
    }
  }
  PythonStandIns(const PythonStandIns&) = delete;
  PythonStandIns& operator=(const PythonStandIns&) = delete;
  PythonStandIns(PythonStandIns&&) = delete;
  PythonStandIns& operator=(PythonStandIns&&) = delete;

  double choose(double usual, double low, double high, bool is_bool) override {
    return call<double>(
        [&](const py::handle& log) { return log.attr("choose")(usual, low, high, is_bool).cast<double>(); });
  }

  void on_answer(const std::string& op, std::string_view answer) override {
    call<void>([&](const py::handle& log) { log.attr("hear")(op, answer); });
  }

 private:
  template <typename Result, typename Function>
  Result call(const Function& function) const {
    py::gil_scoped_acquire gil;
    try {
      return function(py::handle(log_));
    } catch (py::error_already_set& error) {
      error.restore();
      python_error carrier;
      carrier.persist();
      throw carrier;
    }
  }

  PyObject* const log_;
};

c10::DeviceIndex checked(int index) {
  TORCH_CHECK_VALUE(index >= 0 && index < 127, "CardMemory: expected an index from 0 to 126, got ", index);
  return static_cast<c10::DeviceIndex>(index);
}

}  // namespace

std::shared_ptr<StandIns> python_stand_ins(const py::object& log) {
  return std::make_shared<PythonStandIns>(log);
}

void bind_cards(py::module_& module) {
  py::class_<CardMemory, std::shared_ptr<CardMemory>>(module, "CardMemory")
      .def(py::init([] { return std::make_shared<CardMemory>(c10::kCUDA); }))
      .def("allocated", [](const CardMemory& self, int index) { return self.card(checked(index)).bytes(); })
      .def("peak", [](const CardMemory& self, int index) { return self.card(checked(index)).peak(); })
      .def("allocations", [](const CardMemory& self, int index) { return self.card(checked(index)).allocations(); })
      .def("live", [](const CardMemory& self, int index) { return self.card(checked(index)).live(); })
      .def("reset_peak", [](CardMemory& self, int index) { self.card(checked(index)).reset_peak(); });
  module.def("claimed_device_count", [] { return static_cast<int>(claimed_device_count()); });
  // The number used as the address of a fake's first element.
  module.def(
      "address_of",
      [](const at::Tensor& fake) {
        const FakeTensorImpl* impl = as_fake(fake);
        TORCH_CHECK_VALUE(impl != nullptr, "address_of: expected a fake tensor");
        if (fake.numel() == 0) {
          return uintptr_t{0};
        }
        return address_of(impl->storage_impl(), impl->claimed_device()) +
            static_cast<uintptr_t>(fake.storage_offset()) * fake.itemsize();
      },
      py::arg("fake"));
  module.def(
      "address_of_storage",
      [](const c10::Storage& storage) {
        const std::optional<c10::Device> device = claimed_device_of(storage.unsafeGetStorageImpl());
        TORCH_CHECK_VALUE(device.has_value(), "address_of_storage: expected the storage of a fake tensor");
        return storage.nbytes() == 0 ? uintptr_t{0} : address_of(storage.unsafeGetStorageImpl(), *device);
      },
      py::arg("storage"));
  // `counts` returns tuples of (group, number of ranks, operator, calls, bytes).
  py::class_<CollectiveCounter>(module, "CollectiveCounter")
      .def(py::init<ModePtr>(), py::arg("mode").none(false))
      .def("counts", [](const CollectiveCounter& self) {
        std::vector<std::tuple<std::string, int64_t, std::string, int64_t, int64_t>> rows;
        for (const auto& [key, count] : self.counts()) {
          rows.emplace_back(key.first, count.group_size, key.second, count.calls, count.nbytes);
        }
        return rows;
      });
  // Notifies the stand-ins of a fake's mode that a value is used for `name`; False if the mode has none.
  module.def(
      "stands_in",
      torch::wrap_pybind_function([](const at::Tensor& fake, const std::string& name, const std::string& answer) {
        const FakeTensorImpl* impl = as_fake(fake);
        return impl != nullptr && stands_in(impl->mode(), name, answer);
      }),
      py::arg("fake"),
      py::arg("name"),
      py::arg("answer"));
  module.def(
      "element_in_place",
      torch::wrap_pybind_function([](const at::Tensor& fake) {
        const FakeTensorImpl* impl = as_fake(fake);
        return impl == nullptr ? 1.0 : element_in_place(*impl);
      }),
      py::arg("fake"));
}

}  // namespace torchfake
