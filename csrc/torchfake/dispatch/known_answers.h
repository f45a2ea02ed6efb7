// Calls determined by values: results computed from known values, and constants that enter the mode.
#pragma once

#include <torchfake/core/call.h>

namespace torchfake {

class ValueTracker;

// Runs the real operator for a call whose outcome depends on values. Requires that `values` knows all inputs.
void answer_from_values(Call& call, const ValueTracker& values, c10::Device device, const ModePtr& mode);

// Throws DataDependentOutputException or DynamicOutputShapeException.
[[noreturn]] void refuse_unknown_values(const Call& call);

// Converts the argument, a real tensor, to a fake with known values.
void lift_argument(Call& call, const ModePtr& mode);

// Handles a call whose tensor arguments are all Python numbers.
void answer_for_numbers(Call& call, const ModePtr& mode);

}  // namespace torchfake
