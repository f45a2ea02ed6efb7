// Calls that values answer: results that follow from known values, and constants that enter the mode.
#pragma once

#include <torchfake/core/call.h>

namespace torchfake {

class ValueTracker;

// Answers a call whose outcome depends on values, by the real operator. Requires that `values` knows all inputs.
void answer_from_values(Call& call, const ValueTracker& values, c10::Device device, const ModePtr& mode);

// Throws DataDependentOutputException or DynamicOutputShapeException.
[[noreturn]] void refuse_unknown_values(const Call& call);

// Turns the argument, a real tensor, into a fake whose values are known.
void lift_argument(Call& call, const ModePtr& mode);

// Answers a call whose tensors are all Python numbers.
void answer_for_numbers(Call& call, const ModePtr& mode);

}  // namespace torchfake
