// Devices this machine does not have.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

#include <vector>

namespace torchfake {

// The device types that torchfake stands in for: PyTorch was built without them, or finds no device.
const std::vector<c10::DeviceType>& absent_device_types();

// A generator of random numbers for a device that is claimed: it has a seed, an offset and a state, and draws nothing.
at::Generator new_claimed_generator(c10::Device device);

// The one that stands for the device's own.
const at::Generator& default_claimed_generator(c10::Device device);

// Called when a real operator is asked to run on an absent device; expected to throw what PyTorch would have thrown.
// If it returns, a NotImplementedError is thrown. Set once, at load.
using AbsentDeviceHook = void (*)(c10::DeviceType);
void set_absent_device_hook(AbsentDeviceHook hook);

}  // namespace torchfake
