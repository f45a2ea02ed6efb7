// Device: picks the device each fresh output claims; refuses inputs that disagree.
#pragma once

#include <torchfake/core/call.h>

namespace torchfake {

// The device that outputs of the call claim. An explicit device argument decides; otherwise the device the inputs have
// in common, where a CPU tensor of no dimensions goes along with any device. With neither, the CPU.
// Throws DeviceMismatchError if two inputs or a generator disagree, DeviceNotFakedError if the mode may not claim the device.
c10::Device device_rule(const Call& call, const ModeState& mode);

}  // namespace torchfake
