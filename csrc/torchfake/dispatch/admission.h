// Before step 1: which tensors a call may have, and what becomes of real ones.
#pragma once

#include <torchfake/dispatch/call.h>

namespace torchfake {

// Whether a call without fakes has tensors that are all Python numbers: torch.add(1, 2).
bool has_numbers_alone(const Call& call);

// Whether a call that has no fake among its arguments is left to real tensors. In a mode of RealTensors other than
// kAmongThemselves nothing is.
bool stays_real(const Call& call, const ModePtr& mode);

// Makes real tensors among the arguments fake where they may be, and throws RealTensorError, having changed nothing,
// where they may not.
void admit_real_tensors(Call& call, const ModePtr& mode);

// Throws MixedModesError for a fake of another mode than the thread's (or the first fake's), where one of the two is
// exclusive.
void refuse_other_modes(const Call& call);

}  // namespace torchfake
