// Substitute for libtorch_cuda.so in a PyTorch without CUDA. See Note [Libraries compiled for CUDA].
#include <stdexcept>

namespace at::cuda {

// PyTorch's names. NOLINTBEGIN(readability-identifier-naming)
[[noreturn]] void getCurrentDeviceProperties();
void getCurrentDeviceProperties() {
  throw std::runtime_error("at::cuda::getCurrentDeviceProperties: this PyTorch has no CUDA.");
}
// NOLINTEND(readability-identifier-naming)

}  // namespace at::cuda
