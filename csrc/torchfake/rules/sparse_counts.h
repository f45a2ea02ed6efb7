// Rules of sparse tensors whose number of stored elements depends on data. See Note [Layout calls].
#pragma once

#include <torchfake/dispatch/layout_call.h>

namespace torchfake {

// _sparse_coo_tensor_with_dims_and_tensors for members whose sizes are symbols.
at::Tensor coo_of_symbolic(
    const Call& call,
    const at::Tensor& indices,
    const at::Tensor& values,
    c10::Device device,
    const ModePtr& mode);

// Layout rules of _coalesce and of _spdiags(diagonals, offsets, shape, layout).
bool coalesce_sparse(Call& call, c10::Device device, const ModePtr& mode);
bool spdiags(Call& call, c10::Device device, const ModePtr& mode);

}  // namespace torchfake
