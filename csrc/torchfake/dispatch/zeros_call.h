// Kernel, the last resort: runs the real CPU kernel on zeros, for an operator that no meta kernel answers for.
#pragma once

#include <torchfake/core/call.h>

namespace torchfake {

// Replaces the arguments on the stack by what the operator returns for zeros of the same sizes and strides: fakes that
// were given, or plain meta tensors. Throws UnsupportedOperatorException if the inputs or outputs exceed a few megabytes,
// if the operator has no CPU kernel, or if that kernel does not like zeros.
void zeros_call(Call& call, c10::Device device, const ModeState& mode);

// The same with `fill` for every element, in the place of zeros.
void trial_call(Call& call, const ModeState& mode, int fill);

}  // namespace torchfake
