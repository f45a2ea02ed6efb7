// Shared helpers of the engine's tests.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <torchfake/core/fake_tensor_impl.h>
#include <torchfake/torchfake.h>

namespace torchfake::testing {

inline const c10::Device kCuda0(c10::kCUDA, 0);
inline const c10::Device kCuda1(c10::kCUDA, 1);

inline at::TensorOptions on(c10::Device device) {
  return at::TensorOptions().device(device);
}

// The message of the `Error` that `function` throws. Fails the test if it throws nothing or something else.
template <typename Error, typename Function>
std::string message_of(Function&& function) {
  try {
    function();
  } catch (const Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "threw something else: " << error.what();
    return "";
  }
  ADD_FAILURE() << "threw nothing";
  return "";
}

inline c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  return tensor.storage().unsafeGetStorageImpl();
}

}  // namespace torchfake::testing
