// A call that the cache does not answer: device, refusals, rule, kernel, outputs.
#pragma once

#include <torchfake/cache/shape_cache.h>

namespace torchfake {

class ValueTracker;

// Answers the call and stores its outcome under `key`; `values` follow. In cross-check mode `found` is the outcome in the
// cache, which must be the same.
void run_and_remember(Call& call, ValueTracker& values, const ModePtr& mode, CacheKey& key, const CacheEntry* found);

// What the kernel of an accelerator takes beside its outputs, asked before the arguments are gone.
std::vector<SideAllocation> side_allocations(const Call& call);

// Answers a call that has no key, for `reason`. Returns the device that fresh outputs claim.
c10::Device run_without_key(Call& call, const ValueTracker& values, const ModePtr& mode, Bypass reason);

}  // namespace torchfake
