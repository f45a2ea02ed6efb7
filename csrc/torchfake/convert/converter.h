// Converts real tensors to fakes for tracers: each tensor once, with its autograd state.
#pragma once

#include <torchfake/core/fake_tensor_impl.h>

namespace torchfake {

// Returns the fake of `tensor` in `mode`: the same one on every call, as long as it is alive. Neither keeps the other
// alive. Preserves sizes, strides, offset, dtype, device, conj and neg bits, storage sharing, the view relation to a
// base, requires_grad, whether the tensor is a leaf, and `grad`. Values are preserved only in a mode that propagates
// them. Returns a fake of the mode unchanged; converts a fake of another mode like a real tensor. Throws
// UnsupportedFakeTensorException for a tensor that cannot be faked.
at::Tensor from_tensor(const at::Tensor& tensor, const ModePtr& mode);

// A fake on `device` with the metadata of a meta tensor, remembered in the same way. Throws c10::ValueError if `meta`
// is on another device.
at::Tensor from_meta_and_device(const at::Tensor& meta, c10::Device device, const ModePtr& mode);

// The fake of `tensor` in `mode`, or an undefined tensor if there is none.
at::Tensor find_converted(const at::Tensor& tensor, const ModePtr& mode);

// Registers `fake` as the fake of `tensor`.
void remember_converted(const at::Tensor& tensor, const at::Tensor& fake);

}  // namespace torchfake
