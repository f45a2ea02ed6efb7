// Calls on fakes of other layouts than strided: a route of their own, beside the cache.
#pragma once

#include <torchfake/core/call.h>

namespace torchfake {

// Note [Layout calls]
// A call that takes or makes a sparse fake is answered by the first of these that can:
//
//   rule       written for the operator (rules/sparse.cpp): constructors, products, what reads the indices
//   composed   PyTorch's own sparse kernel, run on the fakes as they are, where it does no more than call operators on
//              indices and values; these come back to the engine one by one
//   stand-ins  the real CPU kernel on small real tensors in place of the fakes. Where the outcome is another for other values
//              or other places of the stored elements, it depends on data, and the call is refused
//
//   s.abs()             composed: abs of the values
//   s.to_dense()        rule: sizes and dtype are those of s
//   d.to_sparse()       stand-ins: nothing or everything is stored, so refused; unless the values of d are known
//
// Invariants. Real kernels run on fakes only where a table says that they touch no data. Nothing here enters the cache.

// Whether a fake of another layout is among the arguments.
bool has_layout_fake(const Call& call);

// Whether the call asks for another layout, none of its arguments having one.
bool asks_for_sparse_layout(const Call& call);

void layout_call(Call& call, const ModePtr& mode);

// The same where the engine is kept out (no_dispatch): on plain meta tensors in place of sparse fakes.
void layout_call_kept_out(Call& call);

// Puts the answer on the stack in place of the arguments and returns true, or leaves them and returns false. Not called where
// the results go to arguments (out=).
using LayoutRule = bool (*)(Call& call, c10::Device device, const ModePtr& mode);

// What is known of an operator for other layouts. All may be missing.
struct LayoutFacts {
  LayoutRule rule = nullptr;
  bool is_composed = false;  // PyTorch's sparse kernel does no more than call operators
  LayoutRule quantized = nullptr;  // the rule of a call that takes or makes a quantized fake
  bool makes_quantized = false;
};

// Null for an operator of which nothing is known. Set once, when the library is loaded.
using LayoutFactsFinder = const LayoutFacts* (*)(const c10::OperatorHandle& op);
void set_layout_facts_finder(LayoutFactsFinder finder);

// The device that a call with fakes of any layout claims. Throws DeviceMismatchError.
c10::Device common_device(const Call& call, const ModeState& mode);

// Runs PyTorch's kernel for the sparse layout of the call on the fakes.
void composed_call(Call& call, c10::Device device, const ModePtr& mode);

// Runs the CPU kernel on real tensors in place of the fakes.
void stand_in_call(Call& call, c10::Device device, const ModePtr& mode);

// A plain meta tensor in place of a fake of whatever layout.
at::Tensor plain_meta(const at::Tensor& fake);

// A fake like `sparse`, any sparse tensor, with fakes for its members: fakes as they are, others converted.
at::Tensor wrap_sparse(const at::Tensor& sparse, c10::Device device, const ModePtr& mode);

}  // namespace torchfake
