// Refusals: calls that the real operator refuses, or that fake tensors do not support.
#pragma once

#include <torchfake/core/call.h>

namespace torchfake {

// Throws what the real operator on `device` throws for arguments that its kernels do not accept, and
// UnsupportedFakeTensorException if the call requests a layout that a fake cannot have.
void check_refusals(const Call& call, c10::Device device);

// The subset of these checks that also applies to operators called by a composite: throws if no fake can have the
// layout, if `device` has no kernel for the operator, with this message, or if its kernel does not accept these dtypes.
inline constexpr const char* kOtherDevicesOnly = "it has kernels for other devices only.";
void check_kernels(const Call& call, c10::Device device);

// Throws UnsupportedFakeTensorException.
[[noreturn]] void refuse_layout(const Call& call);

// Throws if `error` is a failed internal assertion of PyTorch, which asks the user to report a bug.
void refuse_internal_assertion(const c10::OperatorHandle& op, const c10::Error& error);

}  // namespace torchfake
