// The mode, entered and left explicitly as Python's context managers do.
#include <torch/csrc/utils/pybind.h>
#include <torchfake/core/fake_mode.h>
#include <torchfake/core/fake_tensor_impl.h>

#include <thread>

#include "bindings.h"

namespace torchfake {

namespace {

template <typename Mode>
class EnteredMode {
 public:
  template <typename... Args>
  explicit EnteredMode(Args&&... args)
      : mode_(std::make_unique<Mode>(std::forward<Args>(args)...)), thread_(std::this_thread::get_id()) {}

  ~EnteredMode() {
    // Dropped without leave() (an interpreter that is shutting down): another thread's state is not ours to touch.
    if (mode_ && std::this_thread::get_id() != thread_) {
      (void)mode_.release();
    }
  }
  EnteredMode(const EnteredMode&) = delete;
  EnteredMode& operator=(const EnteredMode&) = delete;
  EnteredMode(EnteredMode&&) = delete;
  EnteredMode& operator=(EnteredMode&&) = delete;

  void leave() {
    TORCH_CHECK(
        std::this_thread::get_id() == thread_, "fake_mode: a mode has to be left on the thread that entered it.");
    mode_.reset();
  }

 private:
  std::unique_ptr<Mode> mode_;
  std::thread::id thread_;
};

using EnteredFakeMode = EnteredMode<FakeMode>;
using EnteredNoFakeMode = EnteredMode<NoFakeMode>;

}  // namespace

void bind_mode(pybind11::module_& module) {
  namespace py = pybind11;
  py::class_<EnteredFakeMode>(module, "EnteredFakeMode")
      .def(
          py::init([](bool fake_cuda, int64_t known_values) {
            FakeModeOptions options;
            options.fake_cuda = fake_cuda;
            options.known_values = known_values;
            return std::make_unique<EnteredFakeMode>(std::move(options));
          }),
          py::kw_only(),
          py::arg("fake_cuda"),
          py::arg("known_values"))
      .def_static(
          "of",
          [](const at::Tensor& fake) {
            const FakeTensorImpl* impl = as_fake(fake);
            TORCH_CHECK_VALUE(impl != nullptr, "expected a fake tensor");
            return std::make_unique<EnteredFakeMode>(impl->mode());
          })
      .def("leave", &EnteredFakeMode::leave);
  py::class_<EnteredNoFakeMode>(module, "EnteredNoFakeMode")
      .def(py::init([] { return std::make_unique<EnteredNoFakeMode>(); }))
      .def("leave", &EnteredNoFakeMode::leave);
  module.def("in_fake_mode", &in_fake_mode);
}

}  // namespace torchfake
