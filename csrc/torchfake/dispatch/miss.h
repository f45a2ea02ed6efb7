// A cache miss: device, refusals, rule, kernel, outputs.
#pragma once

#include <torchfake/cache/shape_cache.h>

namespace torchfake {

class ValueTracker;

// Runs the call and stores its outcome under `key`; updates `values`. In cross-check mode `found` is the cached
// outcome, which must be equal.
void run_and_remember(Call& call, ValueTracker& values, const ModePtr& mode, CacheKey& key, const CacheEntry* found);

// The memory that an accelerator's kernel allocates besides its outputs. Call before the arguments are consumed.
std::vector<SideAllocation> side_allocations(const Call& call);

// Runs a call without a key; `reason` says why it has none. Returns the device that fresh outputs claim.
c10::Device run_without_key(Call& call, const ValueTracker& values, const ModePtr& mode, Bypass reason);

}  // namespace torchfake
