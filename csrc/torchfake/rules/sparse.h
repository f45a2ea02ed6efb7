// Sparse tensors: constructors that PyTorch decomposes above the Fake key.
#pragma once

#include <torchfake/core/call.h>

namespace torchfake {

// _sparse_compressed_tensor_unsafe and its four kin, which put a tensor together without an operator of the engine's. Leaves the
// answer on the stack in place of the arguments.
bool make_compressed_tensor(const Call& call);

// sparse_coo_tensor without a size, which follows from the largest indices. Throws DynamicOutputShapeException where they are
// not known.
void check_size_is_known(const Call& call);

}  // namespace torchfake
