// What an operator call accumulates while its kernel runs: one scoped object per call, linked to the enclosing call's.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

namespace torchfake {

// Note [Call context]
// A rule or a composite kernel calls other operators, and these calls come back to the engine. Whatever value or global
// setting a nested call reads therefore counts as read by the outer call:
//
//   outer call            CallContext
//     rule calls at::sum    CallContext, merged into the outer one when the call returns or throws
//       kernel reads the number of threads
//
// Every call that the cache does not answer opens a context. Operators called by a kernel while fakes report `meta` as
// their device (Note [Inside a kernel]) share the context of the call that runs the kernel.
// Rejected: one thread-local flag per fact. A nested call reset the flags of the call around it.
class CallContext {
 public:
  CallContext() noexcept;
  ~CallContext();
  CallContext(const CallContext&) = delete;
  CallContext& operator=(const CallContext&) = delete;
  CallContext(CallContext&&) = delete;
  CallContext& operator=(CallContext&&) = delete;

  // The context of the innermost call of this thread whose kernel is running; null if no kernel is running.
  static CallContext* current() noexcept;

  // The device that the call claims: kernels of different devices use different layouts for some results.
  c10::Device claimed_device{c10::kCPU};
  // The compute capability of the claimed cards: see KernelEnvironment::cuda_capability.
  int64_t cuda_capability = 90;
  // How deeply running kernels are nested.
  int kernel_depth = 0;
  // Whether the running kernel is registered for the Meta key, that is, a Python kernel.
  bool in_python_kernel = false;
  // Whether Python code may run between this call and the nested calls that come back to the engine.
  bool passes_python = false;
  // The device type for which autocast would cast the operators that the composite calls.
  std::optional<c10::DeviceType> may_cast;
  // The outcome depends on something that is never part of a cache key: a known value, or autocast inside a composite.
  bool is_unkeyed = false;
  // Whether the running kernel is a composite shared by all backends and not called by another kernel: a real call
  // would dispatch the operators it calls, too.
  bool in_composite = false;
  // The settings that were read, as a bit set. See KernelEnvironment.
  uint32_t settings = 0;

 private:
  CallContext* const parent_;
};

// Note [Inside a kernel]
// A meta kernel must see meta tensors, and the program around it must see the claimed device. Instead of keeping two
// tensors in sync, one fake reports either: `device()` is the claimed device, except on a thread that is inside a
// kernel call of the engine, where it is meta. The same guard handles dispatch keys: see dispatch/meta_call.cpp.
//
//   with fake_mode():
//     x = torch.ones(2, device="cuda")   # x.device: cuda:0; inside the kernel of add: meta
//     x + 1
//
// Rejected: a second, plain meta tensor inside each fake. Every in-place change of sizes or strides would have to be
// mirrored, and each fake would take twice the memory.
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
