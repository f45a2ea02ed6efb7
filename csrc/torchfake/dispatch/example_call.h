// Calls with unbacked symbols or with PyTorch's own nodes: handled on the symbols themselves, and not cached.
#pragma once

#include <torchfake/core/call.h>

namespace torchfake {

// Whether every symbolic number of the call is torchfake's and has a hint, so that the call can be cached.
bool has_hints_of_ours(const Call& call);

// Handles any other call. A symbol without a hint gets an example value (number_for). The rule runs first, because the
// facts that it records (u0 equals u1) restrict the possible examples. As with hints, the rule determines the sizes,
// and the example the dtypes and the layout. Without a rule, or if it does not apply, the operator's kernels are run on
// the symbols; if they do not take them, the call is specialised, which is an error for a symbol without a hint. Rules
// of views need no stand-ins.
void example_call(Call& call, const ModePtr& mode, void (*answer)(Call& call, const ModePtr& mode));

}  // namespace torchfake
