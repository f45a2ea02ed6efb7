// Calls with symbols that only data knows, or with PyTorch's own nodes: answered on the symbols themselves, and not kept.
#pragma once

#include <torchfake/core/call.h>

namespace torchfake {

// Whether every symbolic number of the call is torchfake's and has a hint: what the cache can keep.
bool has_hints_of_ours(const Call& call);

// Answers a call of which some has not. A symbol without a hint stands at an example (number_for). There the rule comes
// first, because what it learns (that u0 is equal to u1) decides which examples are possible. It has the same say: the sizes
// are the rule's, the example gives dtypes and layout. Without a rule, or where it has no say, the call is specialised, which
// is an error for a symbol without a hint. Rules of views need no stand-ins.
void example_call(Call& call, const ModePtr& mode, void (*answer)(Call& call, const ModePtr& mode));

}  // namespace torchfake
