// Failures inside kernels of another language: what is raised if a kernel was not written for the given arguments.
#pragma once

#include <exception>
#include <optional>
#include <string>

namespace torchfake {

// An internal failure of such a kernel, as opposed to an error that is meant for the caller.
struct KernelFailure {
  bool is_assertion;  // a check of its arguments, which real operators also make; otherwise a bug in the kernel
  std::string text;
};

// A language binding distinguishes such failures from errors meant for the caller, for which it returns no value.
// Called while the error is being handled. Set once, at load time.
using KernelFailureReader = std::optional<KernelFailure> (*)(const std::exception& error);
void set_kernel_failure_reader(KernelFailureReader reader);

// Whether an error is such a failure. Called while it is being handled.
bool is_kernel_failure(const std::exception& error);

// Throws our own refusal instead of `error` if `op` is one of PyTorch's and its kernel failed internally: a plain
// error, as real operators raise for arguments, or UnsupportedOperatorException for a bug in the kernel.
void refuse_kernel_failure(const std::string& op, const std::exception& error);

}  // namespace torchfake
