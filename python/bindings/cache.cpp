// The shape cache: statistics, limits and scopes.
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>
#include <torchfake/cache/shape_cache.h>

#include "bindings.h"

namespace torchfake {

namespace {

// A scope of the cache, left explicitly by Python's context managers.
template <typename Scope>
class EnteredScope {
 public:
  template <typename... Args>
  explicit EnteredScope(Args&&... args) : scope_(std::make_unique<Scope>(std::forward<Args>(args)...)) {}

  void leave() {
    scope_.reset();
  }

 private:
  std::unique_ptr<Scope> scope_;
};

using EnteredNoCache = EnteredScope<shape_cache::NoCache>;
using EnteredCrossCheck = EnteredScope<shape_cache::CrossCheck>;

}  // namespace

void bind_cache(pybind11::module_& module) {
  namespace py = pybind11;
  module.def("cache_info", [] {
    const CacheInfo info = shape_cache::info();
    py::dict result;
    result["hits"] = info.hits;
    result["misses"] = info.misses;
    result["bypasses"] = info.bypasses;
    result["size"] = info.size;
    result["bytes"] = info.bytes;
    result["max_size"] = info.max_size;
    result["max_bytes"] = info.max_bytes;
    return result;
  });
  module.def("clear_cache", &shape_cache::clear);
  module.def("set_cache_limits", &shape_cache::set_limits, py::arg("max_size"), py::arg("max_bytes"));
  py::class_<EnteredNoCache>(module, "EnteredNoCache")
      .def(
          py::init([](ModePtr mode) { return std::make_unique<EnteredNoCache>(std::move(mode)); }),
          py::arg("mode") = py::none())
      .def("leave", [](EnteredNoCache& self) { self.leave(); });
  py::class_<EnteredCrossCheck>(module, "EnteredCrossCheck")
      .def(py::init([] { return std::make_unique<EnteredCrossCheck>(); }))
      .def("leave", [](EnteredCrossCheck& self) { self.leave(); });
  module.def("cache_enabled", &shape_cache::enabled);
  module.def("set_cache_enabled", &shape_cache::set_enabled, py::arg("enabled"));
  module.def("cache_cross_check", &shape_cache::cross_check);
  module.def("set_cache_cross_check", &shape_cache::set_cross_check, py::arg("cross_check"));
}

}  // namespace torchfake
