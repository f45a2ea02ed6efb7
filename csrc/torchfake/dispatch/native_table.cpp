// Step 4 of 5: the C++ meta kernels that PyTorch ships.
#include <torchfake/dispatch/native_table.h>

#include <torchfake/rules/kernels.h>

#include <unordered_map>

namespace torchfake {

namespace {

using Table = std::unordered_map<std::string, c10::KernelFunction>;

Table& table() {
  static auto* table = new Table();  // never destroyed: operators may run while the process ends
  return *table;
}

// Ours first: where PyTorch has one too, ours is there because that one does not answer as the real kernel.
const Table& filled_table() {
  static const bool filled = [] {
    for (const auto family :
         {&pointwise_kernels,
          &reduction_kernels,
          &rearranging_kernels,
          &normalization_kernels,
          &convolution_kernels,
          &recurrent_kernels,
          &random_kernels,
          &factory_kernels,
          &fourier_kernels,
          &vision_kernels}) {
      for (const NativeKernel& kernel : family()) {
        table().emplace(kernel.name, kernel.kernel);
      }
    }
    for_each_native_kernel([](const NativeKernel& kernel) { table().emplace(kernel.name, kernel.kernel); });
    return true;
  }();
  (void)filled;
  return table();
}

}  // namespace

const c10::KernelFunction* find_native_kernel(const std::string& name) {
  const Table& kernels = filled_table();
  const auto found = kernels.find(name);
  return found == kernels.end() ? nullptr : &found->second;
}

}  // namespace torchfake
