// Calls with symbols that replace the storage of a tensor.
#pragma once

#include <torchfake/core/call.h>

namespace torchfake {

// For an operator that `replaces_storage`, with the arguments (self), (self, source) or (self, source, storage_offset,
// size, stride), where the source is a tensor or a storage: gives `self` the storage and the geometry, symbolic or not.
// Returns false, with nothing changed, if the arguments do not fit together or the source is real.
bool replace_storage(Call& call);

}  // namespace torchfake
