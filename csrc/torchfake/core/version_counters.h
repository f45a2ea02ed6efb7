// Version counters of fakes, which are made and dropped with every operator call.
#pragma once

#include <c10/core/TensorImpl.h>

namespace torchfake {

// Note [Recycled version counters]
// A tensor has a counter of its writes, in memory of its own: malloc and free of it are what is left of those two in a
// hit of the shape cache. A fake that dies leaves its counter, if nobody shares it, to the next one of the thread.
// See Note [Recycled memory] for what holds at the end of a thread, and with the address sanitizer.

// A counter that stands at zero.
c10::VariableVersion take_version_counter();

// Takes one that nobody else has.
void leave_version_counter(c10::VariableVersion&& counter) noexcept;

}  // namespace torchfake
