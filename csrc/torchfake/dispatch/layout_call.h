// Calls on fakes of layouts other than strided: a separate path that bypasses the cache.
#pragma once

#include <torchfake/core/call.h>

namespace torchfake {

// Note [Layout calls]
// A call that takes or returns a fake of another layout is handled by the first of these that applies:
//
//   rule       written for the operator (rules/sparse.cpp): constructors, products, operators that read the indices
//   composed   PyTorch's own sparse kernel, run on the fakes, if it only calls operators on indices and values; these
//              return to the engine one by one
//   stand-ins  the real CPU kernel on small real tensors in place of the fakes. If the outcome varies with the values
//              or the positions of the stored elements, it depends on data, and the call is refused
//
//   s.abs()             composed: abs of the values
//   s.to_dense()        rule: sizes and dtype are those of s
//   d.to_sparse()       stand-ins: nothing or everything is stored, so refused; unless the values of d are known
//
// In a mode with a shape environment the last one is not refused: the number of stored elements is a new symbol, if
// that number is all that differs between the runs.
//
// Invariants. Real kernels run on fakes only if a table says that they access no data. Nothing here enters the cache.

// Whether a fake of another layout is among the arguments.
bool has_layout_fake(const Call& call);

// Whether an argument of the call requests a sparse layout: a layout, or the flag of a backward operator.
bool requests_sparse_layout(const Call& call);

// Handles a layout call: replaces the arguments on the stack by the results. Throws DynamicOutputShapeException if the
// outcome depends on unknown data, and UnsupportedOperatorException if no rule, kernel or stand-ins determine it.
void layout_call(Call& call, const ModePtr& mode);

// Handles a layout call while the engine is excluded (no_dispatch): runs it on plain meta tensors in place of the
// fakes.
void layout_call_kept_out(Call& call);

// Replaces the arguments on the stack by the results and returns true, or leaves them and returns false. Not called if
// there are out= arguments.
using LayoutRule = bool (*)(Call& call, c10::Device device, const ModePtr& mode);

// Facts about an operator for other layouts. Each may be missing.
struct LayoutFacts {
  LayoutRule rule = nullptr;
  bool is_composed = false;  // PyTorch's sparse kernel only calls other operators
  LayoutRule quantized = nullptr;  // the rule for calls that take or return a quantized fake
  bool makes_quantized = false;
};

// Returns null for an operator without such facts. Set once, at load time.
using LayoutFactsFinder = const LayoutFacts* (*)(const c10::OperatorHandle& op);
void set_layout_facts_finder(LayoutFactsFinder finder);

// The device claimed by a call with fakes of any layout. Throws DeviceMismatchError.
c10::Device common_device(const Call& call, const ModeState& mode);

// Runs PyTorch's own sparse kernel on the fakes.
void composed_call(Call& call, c10::Device device, const ModePtr& mode);

// Runs the CPU kernel on real tensors in place of the fakes.
void stand_in_call(Call& call, c10::Device device, const ModePtr& mode);

// A plain meta tensor in place of a fake of any layout. One whose number of stored elements is a symbol is refused; a
// sparse COO one is replaced by a tensor that stores nothing if `may_lack_elements`.
at::Tensor plain_meta(const at::Tensor& fake, bool may_lack_elements = false);

// A fake of `sparse`, any sparse tensor; its members that are fakes are kept, the others converted.
at::Tensor wrap_sparse(const at::Tensor& sparse, c10::Device device, const ModePtr& mode);

}  // namespace torchfake
