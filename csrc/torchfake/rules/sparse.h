// Sparse constructors that PyTorch decomposes above the Fake key, and sums of sparse tensors.
#pragma once

#include <torchfake/core/call.h>
#include <torchfake/core/fake_mode.h>

namespace torchfake {

// _sparse_compressed_tensor_unsafe and its four variants, which construct a tensor without calling an operator of the
// engine. Replaces the arguments on the stack by the result.
bool make_compressed_tensor(const Call& call);

// sparse_coo_tensor without a size, which is derived from the largest indices. Throws DynamicOutputShapeException if
// they are unknown.
void check_size_is_known(const Call& call);

// add(sparse COO, sparse COO), in place or not. Returns false if the general route decides.
bool add_stored_elements(Call& call, c10::Device device, const ModePtr& mode, bool in_place);

}  // namespace torchfake
