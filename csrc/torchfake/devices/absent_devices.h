// Devices this machine does not have.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

namespace torchfake {

// Whether torchfake stands in for a device type: PyTorch was built without it, or finds no device. A backend that is loaded
// later is not absent from then on.
bool is_absent(c10::DeviceType type);

// Whether Python initialises the device before an operator sees it, and raises there where it is absent.
bool is_initialised_by_front(c10::DeviceType type);

// The value of a fake of one element, or what stands in for it. Where the engine is switched off, PyTorch reads it so, for
// the elements of torch.tensor([x, 2]). Throws DataDependentOutput if there is neither, and refuses real tensors.
at::Scalar read_number(const at::Tensor& number);

// A generator of random numbers for a device that is claimed: it has a seed, an offset and a state, and draws nothing.
at::Generator new_claimed_generator(c10::Device device);

// The one that stands for the device's own.
const at::Generator& default_claimed_generator(c10::Device device);

// Called when a real operator is asked to run on an absent device; expected to throw what PyTorch would have thrown.
// If it returns, an error about the missing device is thrown. Set once, at load.
using AbsentDeviceHook = void (*)(c10::DeviceType);
void set_absent_device_hook(AbsentDeviceHook hook);

}  // namespace torchfake
