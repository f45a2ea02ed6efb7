// Real (or meta) tensors made fake, aliases kept.
#pragma once

#include <torchfake/core/fake_tensor_impl.h>

namespace torchfake {

// A fake with the metadata of `tensor`: sizes, strides, offset, dtype, and its device unless another is given. A meta
// tensor needs `device`; without one it claims the CPU. Two tensors that share a storage become fakes that share one,
// as long as a fake of the first is alive. A fake of whatever mode comes back as it is.
// Throws UnsupportedFakeTensorException for a tensor that is not strided or is quantized.
at::Tensor to_fake(const at::Tensor& tensor, const ModePtr& mode, std::optional<c10::Device> device = std::nullopt);

// The same for any tensor, also for a fake of another mode.
at::Tensor make_fake_of(const at::Tensor& tensor, const ModePtr& mode, c10::Device device);

// Forgets the known values behind a fake, for all that share its storage; of a real tensor, those of every fake that stands
// for its storage, in all modes, or whose values it is a copy of. Does nothing where no values are known.
void forget_values_of(const at::Tensor& tensor);

// Notes that `copy`, a real tensor, has the values of `fake`.
void remember_copy(const at::Tensor& fake, const at::Tensor& copy);

// A plain meta tensor with the metadata of a fake. Fakes that share a storage become meta tensors that share one.
at::Tensor to_meta(const at::Tensor& fake);

}  // namespace torchfake
