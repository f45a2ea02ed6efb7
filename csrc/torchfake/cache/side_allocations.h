// Announces a kernel's allocations in addition to its outputs, in order. Step: outcome.
#pragma once

#include <torchfake/cache/outcome.h>
#include <torchfake/core/deferred_allocations.h>

namespace torchfake {

// Note [Order of allocations]
// How much a card reserves depends on the order in which a kernel requests memory: dropout on a GPU allocates its mask
// before its output, so the mask may split the block into which the output would have fit. If a kernel's order differs
// from "outputs, then temporary memory", its steps name the outputs. The outputs are then created first and announced
// later, at their step; an out-of-memory error at any step leaves the arguments unchanged.
//
// `replay` handles steps that name outputs; the unboxed path does not.

// Whether any of the steps names an output.
inline bool name_outputs(c10::ArrayRef<SideAllocation> allocations) {
  return std::any_of(allocations.begin(), allocations.end(), [](const SideAllocation& step) {
    return step.kind == SideAllocation::Kind::kOutput;
  });
}

// Defers the announcement of a call's outputs if the steps name outputs and there is an observer. The outputs must be
// created while it is alive, and announce_allocations called before it ends.
class OrderedOutputs {
 public:
  OrderedOutputs(c10::ArrayRef<SideAllocation> allocations, const ModePtr& mode);

 private:
  std::optional<DeferredAllocations> deferred_;
};

// Announces the steps; whatever was taken and not given back is given back at the end. `outputs` are the values that
// the call returns. Throws what the observer throws, having given everything back. Does nothing inside a kernel, whose
// own outcome includes these steps.
void announce_allocations(
    c10::ArrayRef<SideAllocation> allocations,
    c10::ArrayRef<c10::IValue> outputs,
    const ModePtr& mode);

}  // namespace torchfake
