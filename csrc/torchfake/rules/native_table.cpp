// The C++ meta kernels that PyTorch ships.
#include <torchfake/rules/native_table.h>

#include <torchfake/rules/kernels.h>

#include <unordered_map>

namespace torchfake {

namespace {

using Table = std::unordered_map<std::string, c10::KernelFunction>;

Table& table() {
  static auto* table = new Table();  // never destroyed: operators may run while the process ends
  return *table;
}

template <typename Visit>
void for_each_own_kernel(const Visit& visit) {
  for (const auto family :
       {&pointwise_kernels,    &reduction_kernels,      &rearranging_kernels,     &normalization_kernels,
        &convolution_kernels,  &recurrent_kernels,      &cudnn_recurrent_kernels, &random_kernels,
        &attention_kernels,    &factory_kernels,        &fourier_kernels,         &vision_kernels,
        &loss_kernels,         &activation_kernels,     &distribution_kernels,    &distance_kernels,
        &embedding_kernels,    &linalg_kernels,         &optimizer_kernels,       &padding_kernels,
        &pooling_kernels,      &searching_kernels,      &selection_kernels,       &filling_kernels,
        &quantization_kernels, &scaled_product_kernels, &grouped_product_kernels, &transformer_kernels,
        &assertion_kernels}) {
    for (const NativeKernel& kernel : family()) {
      visit(kernel);
    }
  }
}

void add_own(const NativeKernel& kernel) {
  const bool is_first = table().emplace(kernel.name, kernel.kernel).second;
  TORCH_INTERNAL_ASSERT(is_first, kernel.name, " has two kernels in csrc/torchfake/rules");
}

void add_pytorchs(const NativeKernel& kernel) {
  table().emplace(kernel.name, kernel.kernel);
}

// Ours take precedence: they exist only where PyTorch's kernel is missing or deviates from the real one.
const Table& filled_table() {
  static const bool filled = [] {
    for_each_own_kernel(add_own);
    for_each_native_kernel(add_pytorchs);
    return true;
  }();
  (void)filled;
  return table();
}

}  // namespace

std::map<std::string, bool> list_native_kernels() {
  std::map<std::string, bool> names;
  for (const auto& [name, kernel] : filled_table()) {
    names.emplace(name, false);
  }
  for_each_own_kernel([&](const NativeKernel& kernel) { names[kernel.name] = true; });
  return names;
}

const c10::KernelFunction* find_native_kernel(const std::string& name) {
  const Table& kernels = filled_table();
  const auto found = kernels.find(name);
  return found == kernels.end() ? nullptr : &found->second;
}

}  // namespace torchfake
