// The claimed device of the call that runs, for kernels that depend on it.
#include <torchfake/rules/kernels.h>

namespace torchfake {

namespace {

thread_local c10::Device t_claimed_device{c10::kCPU};

}  // namespace

c10::Device claimed_device() {
  return t_claimed_device;
}

ClaimedDevice::ClaimedDevice(c10::Device device) : before_(t_claimed_device) {
  t_claimed_device = device;
}

ClaimedDevice::~ClaimedDevice() {
  t_claimed_device = before_;
}

}  // namespace torchfake
