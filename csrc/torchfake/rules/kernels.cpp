// The claimed device of the running call, for kernels that depend on it.
#include <torchfake/rules/kernels.h>

#include <torchfake/core/call_context.h>

namespace torchfake {

c10::Device claimed_device() {
  const CallContext* call = CallContext::current();
  return call == nullptr ? c10::Device(c10::kCPU) : call->claimed_device;
}

}  // namespace torchfake
