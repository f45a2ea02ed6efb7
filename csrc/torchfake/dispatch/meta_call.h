// Kernel: runs the operator on metadata alone.
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <torchfake/core/call.h>
#include <torchfake/core/call_context.h>

namespace torchfake {

// A scope of this thread that is like the inside of a kernel: fakes answer `meta` for their device, and operators on them
// take and return what meta kernels do. Scopes end in the reverse order of their beginnings.
class KernelScope {
 public:
  KernelScope();

 private:
  CallContext context_;
  InKernel in_kernel_;
  c10::impl::ForceDispatchKeyGuard keys_;
};

// Replaces the arguments on the stack by what the operator's meta kernel answers: fakes that were given, views of them
// and plain meta tensors. `device` is what the call claims. Requires an open CallContext. Throws
// UnsupportedOperatorException if no kernel can answer, and whatever the kernel throws.
void meta_call(Call& call, c10::Device device);

// Whether somebody registered a function that says what an operator of theirs does on fakes. A language front knows; its
// finder is called on any thread, and may be set while calls run.
using FakeImplFinder = bool (*)(const c10::OperatorHandle& op);
void set_fake_impl_finder(FakeImplFinder finder);
bool has_fake_impl(const Call& call);

// Runs it, in `mode`: it sees fakes with the devices they claim, and returns fakes on devices that it chooses.
void fake_impl_call(Call& call, const ModePtr& mode);

// An operator that a kernel calls: the same choice of kernels, with plain meta tensors going in and coming out.
void nested_call(Call& call);

// Whether some kernel can answer for the operator on metadata alone.
bool has_meta_kernel(const Call& call);

// The key of the kernel that all backends of the operator share, or nothing where each has its own.
std::optional<c10::DispatchKey> find_composite_key(const c10::OperatorHandle& op);

// Whether the operator can only be run by its decomposition into others.
bool must_decompose(const c10::OperatorHandle& op);

// Calls the real operator, with the engine out of the way: the arguments are real tensors.
void real_call(Call& call);

}  // namespace torchfake
