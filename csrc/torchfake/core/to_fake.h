// Converts real (or meta) tensors to fakes, preserving aliases.
#pragma once

#include <torchfake/core/fake_tensor_impl.h>

namespace torchfake {

// A fake with the metadata of `tensor`: sizes, strides, offset, dtype, and its device unless another is given. A meta
// tensor without `device` becomes a fake that claims the CPU. Two tensors that share a storage become fakes that share
// one, as long as a fake of the first is alive. A fake of any mode is returned unchanged. Throws
// UnsupportedFakeTensorException for a nested or MKL-DNN tensor, and for one without a storage.
at::Tensor to_fake(const at::Tensor& tensor, const ModePtr& mode, std::optional<c10::Device> device = std::nullopt);

// As above for any tensor, including a fake of another mode.
at::Tensor make_fake_of(const at::Tensor& tensor, const ModePtr& mode, c10::Device device);

// Forgets the known values behind a fake, for all fakes that share its storage; for a real tensor, those of every fake,
// in all modes, that stands for its storage or whose values it was copied from. Does nothing if no values are known.
void forget_values_of(const at::Tensor& tensor);

// Records that `copy`, a real tensor, holds the values of `fake`.
void remember_copy(const at::Tensor& fake, const at::Tensor& copy);

// A plain meta tensor with the metadata of a fake. Fakes that share a storage become meta tensors that share one.
at::Tensor to_meta(const at::Tensor& fake);

}  // namespace torchfake
