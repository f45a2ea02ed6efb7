// Refusals: calls that the real operator refuses, or that no fake tensor can answer.
#pragma once

#include <torchfake/core/call.h>

namespace torchfake {

// Throws what the real operator on `device` throws for arguments that its kernels do not take, and
// UnsupportedFakeTensorException where the call asks for a layout that a fake cannot have.
void check_refusals(const Call& call, c10::Device device);

// The part of it that also holds for an operator which a composite calls: throws where no fake can have the layout, where
// `device` has no kernel for the operator, in these words, or none for these dtypes.
inline constexpr const char* kOtherDevicesOnly = "it has kernels for other devices only.";
void check_kernels(const Call& call, c10::Device device);

// Throws UnsupportedFakeTensorException.
[[noreturn]] void refuse_layout(const Call& call);

// Throws where `error` is a failed internal check of PyTorch's, which asks the user to report a bug.
void refuse_internal_assertion(const c10::OperatorHandle& op, const c10::Error& error);

}  // namespace torchfake
