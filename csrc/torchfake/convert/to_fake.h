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

// A plain meta tensor with the metadata of a fake. Fakes that share a storage become meta tensors that share one.
at::Tensor to_meta(const at::Tensor& fake);

}  // namespace torchfake
