// Real (or meta) tensors made fake, aliases kept.
#pragma once

#include <torchfake/core/fake_tensor_impl.h>

namespace torchfake {

// A fake with the metadata of `tensor`: sizes, strides, offset, dtype, requires_grad, and its device unless another is
// given. A meta tensor needs `device`; without one it claims the CPU. Two tensors that share a storage become fakes
// that share one, as long as a fake of the first is alive. Small CPU values stay known, as long as they are copied.
// A fake comes back as it is. Throws UnsupportedFakeTensorException for a tensor that is not strided or is quantized.
at::Tensor to_fake(const at::Tensor& tensor, const ModePtr& mode, std::optional<c10::Device> device = std::nullopt);

}  // namespace torchfake
