// Recurrent networks as oneDNN runs them on the CPU, over symbols.
#pragma once

#include <torchfake/core/call.h>

namespace torchfake {

// lstm of a padded float32 batch with symbolic sizes. PyTorch would run symbolic sizes step by step, which fixes the
// number of steps; sizes and strides of the result are the same. For any other call, returns false and leaves it to
// PyTorch.
bool onednn_lstm(const Call& call);

}  // namespace torchfake
