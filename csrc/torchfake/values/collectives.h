// Constant propagation through collectives: which values are unknown because other ranks contribute to them.
#pragma once

#include <torchfake/core/call.h>

namespace torchfake {

// Note [Values of other ranks]
// One process stands for one of many ranks. The data of the other ranks is unknown, so whatever a collective receives
// from them is unknown too, regardless of the previous values on this rank:
//
//   x = torch.ones(2); dist.all_reduce(x)   # the sum over all ranks: unknown
//   dist.broadcast(x, src=0)                # the values of rank 0: unknown on any other rank
//
// The process group underneath does not move data, so neither its kernel nor the schema says what is written. Values
// stay known in two cases where no other rank contributes: a group of size one, and a broadcast from this rank.

// The fakes among the arguments of a c10d operator, nested lists included, whose values come from other ranks.
std::vector<c10::intrusive_ptr<c10::TensorImpl>> received_values(const Call& call);

// Notifies the observers of the storages of the fakes in `value`, nested lists included, that a collective uses them.
void note_collective(const c10::IValue& value);

}  // namespace torchfake
