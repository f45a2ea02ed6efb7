// What PyTorch's core believes of an accelerator while fakes claim it, where it is not there.
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/detail/HPUHooksInterface.h>
#include <ATen/detail/MPSHooksInterface.h>
#include <ATen/detail/MTIAHooksInterface.h>
#include <ATen/detail/XPUHooksInterface.h>

#include <torchfake/core/fake_mode.h>
#include <torchfake/core/fake_tensor_impl.h>
#include <torchfake/devices/absent_devices.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <new>

namespace torchfake {

namespace {

// PyTorch has one accelerator at a time: on this thread, the one that was claimed last.
bool is_claimed(c10::DeviceType type) {
  return in_fake_mode() && last_claimed_accelerator() == type;
}

// Note [Accelerator hooks]
// Autograd and `x.cuda(2)` ask which accelerator the process has, and fail if it has none. The answer comes from the
// hooks of each backend, whose instances are made and cached when torch is loaded: the objects themselves have to be
// replaced, in place. They have no members, so only their type changes. On a thread that is in no mode they answer
// what the old ones did; a CUDA build's own hooks are kept aside for that. In the mode no generator and no allocator
// exists: what asks for those gets PyTorch's own error.
template <typename Hooks, c10::DeviceType kType>
class ClaimedHooks : public Hooks {
 public:
  bool isBuilt() const override {
    return is_claimed(kType);
  }
  // Autograd keeps the current stream of each device that has a context, and reads it back unchecked.
  bool hasPrimaryContext(c10::DeviceIndex device) const override {
    return is_claimed(kType) ? true : Hooks::hasPrimaryContext(device);
  }
  c10::DeviceIndex getCurrentDevice() const override {
    return is_claimed(kType) ? c10::impl::getDeviceGuardImpl(kType)->getDevice().index() : Hooks::getCurrentDevice();
  }
};

// Where the object that was replaced lives on.
template <typename Hooks>
const Hooks*& replaced() {
  static const Hooks* hooks = nullptr;
  return hooks;
}

class ClaimedCudaHooks final : public ClaimedHooks<at::CUDAHooksInterface, c10::kCUDA> {
 public:
  bool hasCUDA() const override {
    return is_claimed(c10::kCUDA);
  }
  // What a program asks outside the mode, or in its errors.
  void init() const override {
    replaced<at::CUDAHooksInterface>()->init();
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return replaced<at::CUDAHooksInterface>()->getDefaultGenerator(device);
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return replaced<at::CUDAHooksInterface>()->getNewGenerator(device);
  }
  bool hasCUDART() const override {
    return replaced<at::CUDAHooksInterface>()->hasCUDART();
  }
  bool hasMAGMA() const override {
    return replaced<at::CUDAHooksInterface>()->hasMAGMA();
  }
  bool hasCuDNN() const override {
    return replaced<at::CUDAHooksInterface>()->hasCuDNN();
  }
  long versionCuDNN() const override {
    return replaced<at::CUDAHooksInterface>()->versionCuDNN();
  }
  long versionCUDART() const override {
    return replaced<at::CUDAHooksInterface>()->versionCUDART();
  }
  std::string showConfig() const override {
    return replaced<at::CUDAHooksInterface>()->showConfig();
  }
  c10::DeviceIndex current_device() const override {
    return is_claimed(c10::kCUDA) ? getCurrentDevice() : CUDAHooksInterface::current_device();
  }
};

class ClaimedMtiaHooks final : public ClaimedHooks<at::MTIAHooksInterface, c10::kMTIA> {
 public:
  bool hasMTIA() const override {
    return is_claimed(c10::kMTIA);
  }
};

using ClaimedXpuHooks = ClaimedHooks<at::XPUHooksInterface, c10::kXPU>;
using ClaimedMpsHooks = ClaimedHooks<at::MPSHooksInterface, c10::kMPS>;
using ClaimedHpuHooks = ClaimedHooks<at::HPUHooksInterface, c10::kHPU>;

template <typename Claimed, typename Hooks>
void replace(const Hooks& hooks, c10::DeviceType type) {
  static_assert(sizeof(Claimed) == sizeof(Hooks));
  const std::vector<c10::DeviceType>& absent = absent_device_types();
  if (std::find(absent.begin(), absent.end(), type) != absent.end()) {
    alignas(Hooks) static std::array<std::byte, sizeof(Hooks)> aside;
    std::memcpy(aside.data(), static_cast<const void*>(&hooks), sizeof(Hooks));
    replaced<Hooks>() = reinterpret_cast<const Hooks*>(aside.data());
    new (const_cast<Hooks*>(&hooks)) Claimed();
  }
}

struct HooksInstaller {
  HooksInstaller() {
    replace<ClaimedCudaHooks>(at::detail::getCUDAHooks(), c10::kCUDA);
    replace<ClaimedMtiaHooks>(at::detail::getMTIAHooks(), c10::kMTIA);
    replace<ClaimedXpuHooks>(at::detail::getXPUHooks(), c10::kXPU);
    replace<ClaimedMpsHooks>(at::detail::getMPSHooks(), c10::kMPS);
    replace<ClaimedHpuHooks>(at::detail::getHPUHooks(), c10::kHPU);
  }
};

[[maybe_unused]] const HooksInstaller g_hooks_installed_at_load;

}  // namespace

}  // namespace torchfake
