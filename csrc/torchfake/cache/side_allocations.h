// Tells the observer what a kernel takes beside its outputs. Step: outcome.
#pragma once

#include <torchfake/cache/outcome.h>

namespace torchfake {

// All of them at once, then their end: they live together, after the outputs have been made. Throws what the observer
// throws, having given back what it was told of before. Nothing inside a kernel, whose own outcome says what it takes.
void announce_allocations(c10::ArrayRef<SideAllocation> allocations, const ModePtr& mode);

}  // namespace torchfake
