// Kernel, as a fallback: runs the real CPU kernel on zeros, for an operator without a meta kernel.
#pragma once

#include <torchfake/core/call.h>

namespace torchfake {

// Replaces the arguments on the stack by the operator's results for zeros of the same sizes and strides: input fakes,
// views of them, or plain meta tensors. Throws UnsupportedOperatorException if the inputs exceed 64 MiB, if the
// operator has no CPU kernel or is user-defined and returns a value, or if the mode does not allow it
// (allow_fallback_kernels=False; a user-defined operator in a FakeTensorMode); UnsupportedMutationAliasingException if
// a user-defined operator writes to or aliases an argument without declaring it; and whatever the kernel throws.
void zeros_call(Call& call, c10::Device device, const ModeState& mode);

// The same with every element set to `fill` instead of zero.
void trial_call(Call& call, const ModeState& mode, int fill);

}  // namespace torchfake
