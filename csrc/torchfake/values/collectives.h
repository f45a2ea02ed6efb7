// Constant propagation through collectives: which values stop being known because other ranks contribute to them.
#pragma once

#include <torchfake/core/call.h>

namespace torchfake {

// Note [Values of other ranks]
// One process stands for one rank of many. What the others hold is not known here, so what a collective receives from them
// is not known either, whatever this rank had put there before:
//
//   x = torch.ones(2); dist.all_reduce(x)   # the sum over all ranks: unknown
//   dist.broadcast(x, src=0)                # what rank 0 has: unknown, but on rank 0 itself
//
// The process group that runs beneath does nothing with data, so neither its kernel nor the schema says what is written.
// Two cases stay known, because no other rank takes part in the value: a group of one, and a broadcast from this rank.

// The fakes among the arguments of an operator of c10d, in lists of lists too, whose values come from other ranks.
std::vector<c10::intrusive_ptr<c10::TensorImpl>> received_values(const Call& call);

}  // namespace torchfake
