// Real tensors made fake as a tracer wants them: once each, with their place in autograd.
#pragma once

#include <torchfake/core/fake_tensor_impl.h>

namespace torchfake {

// The fake that stands for `tensor` in `mode`: the same one every time, as long as somebody holds it. Neither is kept
// alive by the other. Sizes, strides, offset, dtype, device, conj and neg bits, storage sharing, being a view of a
// base, requires_grad, being a leaf or not, and `grad` are those of `tensor`. Values go along only in a mode that
// propagates them. A fake of the mode comes back as it is; one of another mode is converted like a real tensor.
// Throws UnsupportedFakeTensorException for a tensor that cannot be fake.
at::Tensor from_tensor(const at::Tensor& tensor, const ModePtr& mode);

// A fake on `device` with the metadata of a meta tensor, remembered in the same way. Throws c10::ValueError if `meta`
// is on another device.
at::Tensor from_meta_and_device(const at::Tensor& meta, c10::Device device, const ModePtr& mode);

// The fake that stands for `tensor` in `mode`, or an undefined tensor.
at::Tensor find_converted(const at::Tensor& tensor, const ModePtr& mode);

// Makes `fake` the one that stands for `tensor`.
void remember_converted(const at::Tensor& tensor, const at::Tensor& fake);

}  // namespace torchfake
