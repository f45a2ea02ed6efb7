// Devices this machine does not have.
#pragma once

#include <c10/core/Device.h>

#include <vector>

namespace torchfake {

// The device types that PyTorch was built without and that torchfake stands in for.
const std::vector<c10::DeviceType>& absent_device_types();

// Called when a real operator is asked to run on an absent device; expected to throw what PyTorch would have thrown.
// If it returns, a NotImplementedError is thrown. Set once, at load.
using AbsentDeviceHook = void (*)(c10::DeviceType);
void set_absent_device_hook(AbsentDeviceHook hook);

// While one lives, this thread may run autograd on fakes that claim absent devices, in or out of a mode. FakeMode does
// the same for its scope. See Note [One thread for backward].
class FakeBackward {
 public:
  FakeBackward();
  ~FakeBackward();
  FakeBackward(const FakeBackward&) = delete;
  FakeBackward& operator=(const FakeBackward&) = delete;
  FakeBackward(FakeBackward&&) = delete;
  FakeBackward& operator=(FakeBackward&&) = delete;

 private:
  bool was_multithreaded_;
};

}  // namespace torchfake
