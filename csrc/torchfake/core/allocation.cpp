// The allocation interface.
#include <torchfake/core/allocation.h>

#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace torchfake {

namespace {

__attribute__((tls_model("initial-exec"))) thread_local std::string_view t_operator;

c10::StreamId current_stream(c10::Device device) {
  const auto* guard = c10::impl::device_guard_impl_registry[static_cast<size_t>(device.type())].load();
  return guard == nullptr || device.is_cpu() || device.is_meta() ? 0 : guard->getStream(device).id();
}

}  // namespace

AllocatingOperator::AllocatingOperator(std::string_view op) : Scoped(t_operator, op) {}

std::string_view AllocatingOperator::current() {
  return t_operator;
}

Allocation allocation_of(const void* id, c10::Device device, size_t nbytes) {
  return {id, device, current_stream(device), nbytes, t_operator};
}

}  // namespace torchfake
