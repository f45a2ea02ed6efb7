// Version counters of fakes, which are created and dropped with every operator call.
#pragma once

#include <c10/core/TensorImpl.h>

namespace torchfake {

// Note [Recycled version counters]
// A tensor's version counter has its own allocation, and its malloc and free are the last ones left in a cache hit. A
// fake that dies leaves its counter, unless it is shared, to the next fake of the same thread. See Note [Recycled
// memory] for what happens at the end of a thread, and with the address sanitizer.

// A counter at zero.
c10::VariableVersion take_version_counter();

// Takes back a counter that nobody else holds.
void leave_version_counter(c10::VariableVersion&& counter) noexcept;

}  // namespace torchfake
