// Devices absent from this machine.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

namespace torchfake {

// Whether torchfake stands in for a device type: PyTorch was built without it, or finds no device. A backend loaded
// later is no longer absent.
bool is_absent(c10::DeviceType type);

// Whether Python initialises the device before an operator runs, which raises an error if the device is absent.
bool is_initialised_by_front(c10::DeviceType type);

// The value of a fake with one element, or its stand-in. PyTorch reads the elements of torch.tensor([x, 2]) this way,
// with the engine disabled. Throws DataDependentOutputException if there is neither, and refuses real tensors.
at::Scalar read_number(const at::Tensor& number);

// A random number generator for a claimed device: it has a seed, an offset and a state, but draws nothing itself.
at::Generator new_claimed_generator(c10::Device device);

// The default generator of a claimed device.
const at::Generator& default_claimed_generator(c10::Device device);

// Called when a real operator is to run on an absent device; expected to throw what PyTorch would have thrown. If it
// returns, an error about the missing device is thrown. Set once, at load time.
using AbsentDeviceHook = void (*)(c10::DeviceType);
void set_absent_device_hook(AbsentDeviceHook hook);

}  // namespace torchfake
