// A call on strided fakes: key, then hit or miss, with constant propagation alongside.
#pragma once

#include <torchfake/core/call.h>

namespace torchfake {

// Replaces the arguments on the stack by the operator's results: from the cache, or by running the call. Real tensors
// among the arguments are converted where that is allowed. Throws what the real operator throws, and the errors of
// torchfake; the arguments are then unchanged.
void fake_call(Call& call, const ModePtr& mode);

}  // namespace torchfake
