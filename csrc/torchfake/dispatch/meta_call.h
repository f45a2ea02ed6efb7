// Kernel: runs the operator on metadata only.
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <torchfake/core/call.h>
#include <torchfake/core/call_context.h>

namespace torchfake {

// A scope on this thread that behaves like the inside of a kernel: fakes report `meta` as their device, and operators
// on them take and return the same as in meta kernels. Scopes must end in the reverse order of their creation.
class KernelScope {
 public:
  KernelScope();

 private:
  CallContext context_;
  InKernel in_kernel_;
  c10::impl::ForceDispatchKeyGuard keys_;
};

// Replaces the arguments on the stack by the results of the operator's meta kernel: input fakes, views of them, and
// plain meta tensors. `device` is the device claimed by the call. Requires an open CallContext. Throws
// UnsupportedOperatorException if there is no kernel, and whatever the kernel throws.
void meta_call(Call& call, c10::Device device);

// Whether a fake implementation is registered for a user-defined operator. Provided by the language binding; its finder
// may be called on any thread, and may be set while calls run.
using FakeImplFinder = bool (*)(const c10::OperatorHandle& op);
void set_fake_impl_finder(FakeImplFinder finder);
bool has_fake_impl(const Call& call);

// Runs it in `mode`: it sees fakes with their claimed devices, and chooses the devices of its results.
void fake_impl_call(Call& call, const ModePtr& mode);

// Runs the kernel on `key`, outside of any kernel, in `mode`: the operators that it calls are calls of their own.
void composite_call(Call& call, c10::DispatchKey key, const ModePtr& mode);

// Runs an operator called by a kernel: chooses kernels the same way, but takes and returns plain meta tensors.
void nested_call(Call& call);

// Whether any kernel can run the operator on metadata only.
bool has_meta_kernel(const Call& call);

// The key of the kernel shared by all backends, or nullopt if each backend has its own.
std::optional<c10::DispatchKey> find_composite_key(const c10::OperatorHandle& op);

// Whether the operator can only be run by decomposing it.
bool must_decompose(const c10::OperatorHandle& op);

// Calls the real operator with the engine excluded: the arguments are real tensors.
void real_call(Call& call);

}  // namespace torchfake
