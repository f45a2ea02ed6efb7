// Sets of PyTorch's dispatch keys that the engine registers kernels on.
#pragma once

#include <c10/core/DispatchKey.h>

#include <array>

namespace torchfake {

// The autograd keys under which a dense tensor of any claimable device is handled, and Fake, which takes over where
// autograd is disabled.
inline constexpr std::array<c10::DispatchKey, 13> kDenseAutogradKeys = {
    c10::DispatchKey::AutogradCPU,
    c10::DispatchKey::AutogradCUDA,
    c10::DispatchKey::AutogradXPU,
    c10::DispatchKey::AutogradMPS,
    c10::DispatchKey::AutogradHPU,
    c10::DispatchKey::AutogradMTIA,
    c10::DispatchKey::AutogradXLA,
    c10::DispatchKey::AutogradIPU,
    c10::DispatchKey::AutogradLazy,
    c10::DispatchKey::AutogradMAIA,
    c10::DispatchKey::AutogradPrivateUse1,
    c10::DispatchKey::AutogradOther,
    c10::DispatchKey::Fake,
};

}  // namespace torchfake
