// torchfake's C++ API: tensors that claim a device, a dtype, sizes and strides, and hold no data.
//
//   torchfake::FakeMode mode;
//   at::Tensor x = torch::ones({1 << 20, 1 << 20}, torch::kCUDA);  // four terabytes that are not there
//   at::Tensor y = x.matmul(x);                                     // [1048576, 1048576] on cuda:0
#pragma once

#include <ATen/core/Tensor.h>

#include <torchfake/core/errors.h>
#include <torchfake/core/fake_mode.h>

#include <functional>
#include <optional>

namespace torchfake {

// Whether `tensor` is fake. Looks through the wrappers of functorch and functionalization.
bool is_fake(const at::Tensor& tensor);

// A meta tensor with the sizes, strides and dtype of `fake`, detached. Throws c10::ValueError if `fake` is not fake.
at::Tensor meta_like(const at::Tensor& fake);

// A fake with the metadata of a real or meta tensor, in the thread's mode (or one with default options). Tensors that
// share a storage become fakes that share one. A fake comes back as it is.
// Throws UnsupportedFakeTensorException for tensors that are not strided, or quantized.
at::Tensor to_fake(const at::Tensor& tensor, std::optional<c10::Device> device = std::nullopt);

// In the mode, a fake that knows the values of the real tensor that `make` returns, if they are few enough for it
// (FakeModeOptions::known_values); elsewhere that tensor. For torch::tensor, which writes through a pointer that fakes do
// not have:
//
//   at::Tensor ids = torchfake::constant([] { return torch::tensor({2, 3, 5}); }).to(torch::kCUDA);
at::Tensor constant(const std::function<at::Tensor()>& make);

// The device a fake claims. Throws c10::ValueError if `fake` is not fake.
c10::Device fake_device(const at::Tensor& fake);

}  // namespace torchfake
