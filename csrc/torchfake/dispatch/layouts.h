// Layouts that fake tensors cannot have.
#pragma once

#include <torchfake/dispatch/call.h>

namespace torchfake {

// Throws UnsupportedFakeTensorException for an operator that creates a sparse, nested or quantized tensor.
[[noreturn]] void refuse_layout(const Call& call);

// The same if the call is known to create one. Called before its kernel, which would fail with an unrelated error.
void refuse_other_layouts(const Call& call);

}  // namespace torchfake
