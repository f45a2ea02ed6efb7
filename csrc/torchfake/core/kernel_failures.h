// Kernels that fail of themselves: what another language raises where its kernel was not written for the arguments.
#pragma once

#include <exception>
#include <optional>
#include <string>

namespace torchfake {

// What a kernel in another language failed of, where it is no error that a caller is meant to meet.
struct KernelFailure {
  bool is_assertion;  // a check of its arguments, which real operators make as well; otherwise a mistake of its own
  std::string text;
};

// A language front tells such failures from errors for the caller, which are to pass as they are: nothing for those. Called
// while the error is handled. Set once, at load.
using KernelFailureReader = std::optional<KernelFailure> (*)(const std::exception& error);
void set_kernel_failure_reader(KernelFailureReader reader);

// Throws a refusal of ours in the place of `error`, where `op` is PyTorch's and its kernel failed of itself: a plain error,
// as real operators give for arguments, or UnsupportedOperatorException where it was a mistake of the kernel.
void refuse_kernel_failure(const std::string& op, const std::exception& error);

}  // namespace torchfake
