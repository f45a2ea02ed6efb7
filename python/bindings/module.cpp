// torchfake._C: collects the bindings, one file per feature.
#include <torch/csrc/utils/pybind.h>
#include <torch/version.h>

#include "bindings.h"
#include "memory_bindings.h"

PYBIND11_MODULE(_C, module) {
  module.doc() = "The engine of torchfake. Use the names in torchfake.";
  module.attr("torch_release") = std::to_string(TORCH_VERSION_MAJOR) + "." + std::to_string(TORCH_VERSION_MINOR);
  torchfake::bind_errors(module);
  torchfake::bind_activation(module);
  torchfake::bind_cache(module);
  torchfake::bind_cards(module);
  torchfake::bind_custom_ops(module);
  torchfake::bind_devices(module);
  torchfake::bind_memory(module);
  torchfake::bind_memory_model(module);
  torchfake::bind_work(module);
  torchfake::bind_mode(module);
  torchfake::bind_tensors(module);
  torchfake::bind_stand_in(module);
  torchfake::bind_symbolic(module);
}
