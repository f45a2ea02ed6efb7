// Substitute for libc10_cuda.so in a PyTorch without CUDA. See Note [Libraries compiled for CUDA].
#include <atomic>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace c10::cuda {

// Passed by value by compiled code; never inspected.
class CUDAStream {};

namespace CUDACachingAllocator {

class CUDAAllocator;
// The only data symbol that PyTorch's headers refer to. Data, unlike functions, is bound at load time.
extern std::atomic<CUDAAllocator*> allocator;
std::atomic<CUDAAllocator*> allocator{nullptr};

}  // namespace CUDACachingAllocator

namespace {

[[noreturn]] void refuse(const char* function) {
  throw std::runtime_error(std::string(function) + ": this PyTorch has no CUDA; no kernel can run on a claimed GPU.");
}

}  // namespace

// Functions that PyTorch's headers, and above all kernels, call inline. The return type is not part of a symbol's name.
// NOLINTBEGIN(readability-identifier-naming): PyTorch's names.
int8_t device_count() noexcept;
int8_t device_count() noexcept {
  return 0;
}
[[noreturn]] void device_count_ensure_non_zero() {
  refuse("c10::cuda::device_count_ensure_non_zero");
}
[[noreturn]] void current_device() {
  refuse("c10::cuda::current_device");
}
[[noreturn]] void set_device(signed char) {
  refuse("c10::cuda::set_device");
}
[[noreturn]] void set_device(signed char, bool) {
  refuse("c10::cuda::set_device");
}
[[noreturn]] void device_synchronize() {
  refuse("c10::cuda::device_synchronize");
}
[[noreturn]] void ExchangeDevice(signed char) {
  refuse("c10::cuda::ExchangeDevice");
}
[[noreturn]] void MaybeExchangeDevice(signed char) {
  refuse("c10::cuda::MaybeExchangeDevice");
}
[[noreturn]] void MaybeSetDevice(signed char) {
  refuse("c10::cuda::MaybeSetDevice");
}
[[noreturn]] void GetDevice(signed char*) {
  refuse("c10::cuda::GetDevice");
}
[[noreturn]] void SetDevice(signed char) {
  refuse("c10::cuda::SetDevice");
}
[[noreturn]] void SetDevice(signed char, bool) {
  refuse("c10::cuda::SetDevice");
}
[[noreturn]] void getStreamFromPool(bool, signed char) {
  refuse("c10::cuda::getStreamFromPool");
}
[[noreturn]] void getStreamFromPool(int, signed char) {
  refuse("c10::cuda::getStreamFromPool");
}
[[noreturn]] void getDefaultCUDAStream(signed char) {
  refuse("c10::cuda::getDefaultCUDAStream");
}
[[noreturn]] void getCurrentCUDAStream(signed char) {
  refuse("c10::cuda::getCurrentCUDAStream");
}
[[noreturn]] void setCurrentCUDAStream(CUDAStream) {
  refuse("c10::cuda::setCurrentCUDAStream");
}
[[noreturn]] void c10_cuda_check_implementation(int, const char*, const char*, unsigned, bool) {
  refuse("c10::cuda::c10_cuda_check_implementation");
}
// NOLINTEND(readability-identifier-naming)

}  // namespace c10::cuda
