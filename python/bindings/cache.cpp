// The shape cache: what it holds, and its switches.
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>
#include <torchfake/dispatch/shape_cache.h>

#include "bindings.h"

namespace torchfake {

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
  module.def("cache_enabled", &shape_cache::enabled);
  module.def("set_cache_enabled", &shape_cache::set_enabled, py::arg("enabled"));
  module.def("cache_cross_check", &shape_cache::cross_check);
  module.def("set_cache_cross_check", &shape_cache::set_cross_check, py::arg("cross_check"));
}

}  // namespace torchfake
