// Beside step 3: the values of what an operator makes from constants, kept with the outcome in the cache.
#pragma once

#include <torchfake/dispatch/shape_cache.h>

namespace torchfake {

// Note [Constants]
// zeros, full, arange and zeros_like make small tensors whose values are known (Note [Known values]). The values follow
// from the arguments that are not tensors, and these are all in the key of the cache: so the real operator runs on the
// first calls alone, and what it made is kept with the entry. A later hit gets a copy of its own, to write to as it likes.
// Kept are a few kilobytes at most; the real operator makes anything larger about as fast as it can be copied.

// After a call that was a hit, and whose values have been followed: keeps them with the entry, where they are constants.
void remember_constant(const Call& call, const CacheEntry& entry);

// Whether the entry's one output can be given its values.
inline bool has_constant(const CacheEntry& entry) {
  return entry.constant.load(std::memory_order_relaxed) != nullptr;
}

// Gives `output`, made from an entry that has a constant, its values.
void give_constant(const at::Tensor& output, const CacheEntry& entry);

}  // namespace torchfake
