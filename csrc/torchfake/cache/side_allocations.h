// Tells the observer what a kernel takes beside its outputs, and in which order. Step: outcome.
#pragma once

#include <torchfake/cache/outcome.h>
#include <torchfake/core/deferred_allocations.h>

namespace torchfake {

// Note [Order of allocations]
// What a card reserves depends on the order in which a kernel asks for memory: dropout on a GPU allocates its mask before
// its output, so that the mask may split the block into which the output would have fit. Where a kernel allocates in
// another order than "outputs, then what it takes on the side", its steps name the outputs. The outputs are then made
// first and told later, at their step; an out-of-memory error at any step leaves the arguments as they were.
//
// Steps that name outputs are replayed by `replay`, not on the unboxed path.

inline bool name_outputs(c10::ArrayRef<SideAllocation> allocations) {
  return std::any_of(allocations.begin(), allocations.end(), [](const SideAllocation& step) {
    return step.kind == SideAllocation::Kind::kOutput;
  });
}

// Holds back what the outputs of a call allocate, if the steps name outputs and somebody listens. The outputs are to be
// made while one lives, and announce_allocations called before it ends.
class OrderedOutputs {
 public:
  OrderedOutputs(c10::ArrayRef<SideAllocation> allocations, const ModePtr& mode);

 private:
  std::optional<DeferredAllocations> deferred_;
};

// Announces the steps; what is taken and not given back by a step is given back at the end. `outputs` are the values that
// the call returns. Throws what the observer throws, having given back all that was taken. Nothing inside a kernel, whose
// own outcome says what it takes.
void announce_allocations(
    c10::ArrayRef<SideAllocation> allocations,
    c10::ArrayRef<c10::IValue> outputs,
    const ModePtr& mode);

}  // namespace torchfake
