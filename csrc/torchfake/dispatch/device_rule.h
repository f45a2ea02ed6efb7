// Device: picks the device each fresh output claims; refuses inputs on different devices.
#pragma once

#include <torchfake/core/call.h>

namespace torchfake {

// The device that outputs of the call claim. An explicit device argument decides; otherwise the common device of the
// fakes, where a zero-dimensional CPU tensor may be combined with any device. Without either, the device of the first
// real tensor, or the CPU.
// Throws DeviceMismatchError if two inputs or a generator disagree, DeviceNotFakedError if the mode must not claim the
// device, and UnsupportedFakeTensorException for the meta device in a mode with allow_meta=False.
c10::Device device_rule(const Call& call, const ModeState& mode);

}  // namespace torchfake
