// Recurrent networks as oneDNN runs them on the CPU, over symbols.
#pragma once

#include <torchfake/core/call.h>

namespace torchfake {

// lstm of a padded batch with symbolic sizes, in the dtype float32. PyTorch runs symbolic sizes step by step, and so fixes
// the number of steps; the sizes and strides are the same. Otherwise returns false and leaves the call to PyTorch.
bool onednn_lstm(const Call& call);

}  // namespace torchfake
