// What an operator call accumulates while its kernel runs: one scoped object per call, linked to the call around it.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

namespace torchfake {

// Note [Call context]
// A rule or a composite kernel calls other operators, and these calls come back to the engine. What a nested call reads
// of values and of global settings, the outer call has read too:
//
//   outer call            CallContext
//     rule calls at::sum    CallContext, merged into the one above when the call ends, also by an exception
//       kernel reads the number of threads
//
// A context is opened for every call that the cache does not answer. Operators that a kernel calls while fakes answer
// `meta` (Note [Inside a kernel]) share the context of the call that runs the kernel.
// Rejected: thread-local flags, one per fact. A nested call reset those of the call around it.
class CallContext {
 public:
  CallContext() noexcept;
  ~CallContext();
  CallContext(const CallContext&) = delete;
  CallContext& operator=(const CallContext&) = delete;
  CallContext(CallContext&&) = delete;
  CallContext& operator=(CallContext&&) = delete;

  // The context of the innermost call of this thread whose kernel runs; null where none does.
  static CallContext* current() noexcept;

  // The device that the call claims: kernels of different devices lay out some results differently.
  c10::Device claimed_device{c10::kCPU};
  // The compute capability of its cards: see KernelEnvironment::cuda_capability.
  int64_t cuda_capability = 90;
  // How many kernels run inside of each other.
  int kernel_depth = 0;
  // Whether the kernel that runs is one of the Meta key's, which is to say Python's.
  bool in_python_kernel = false;
  // Whether Python code may stand between this call and those that come back to the engine from it.
  bool passes_python = false;
  // The device type for which autocast would cast operators that the composite calls.
  std::optional<c10::DeviceType> may_cast;
  // The outcome depends on something that no cache key contains: a known value, or autocast inside a composite.
  bool is_unkeyed = false;
  // Whether the kernel that runs is a composite that every backend runs, called by no other kernel: the operators that it
  // calls are called for real, too.
  bool in_composite = false;
  // The settings that were read, as bits. See KernelEnvironment.
  uint32_t settings = 0;

 private:
  CallContext* const parent_;
};

// Note [Inside a kernel]
// A meta kernel must see meta tensors, and the program around it must see the claimed device. Instead of keeping two
// tensors in step, a fake answers both: `device()` is the claimed device, except on a thread that is inside a kernel
// call of the engine, where it is meta. Keys are dealt with by the same guard: see dispatch/meta_call.cpp.
//
//   with fake_mode():
//     x = torch.ones(2, device="cuda")   # x.device: cuda:0; in the kernel that adds: meta
//     x + 1
//
// Rejected: a second, plain meta tensor inside each fake. Every in-place change of sizes or strides would have to be
// carried over, and twice the memory is used.
class InKernel {
 public:
  // Requires an open CallContext.
  InKernel() noexcept;
  ~InKernel();
  InKernel(const InKernel&) = delete;
  InKernel& operator=(const InKernel&) = delete;
  InKernel(InKernel&&) = delete;
  InKernel& operator=(InKernel&&) = delete;

  static bool active() noexcept;
};

}  // namespace torchfake
