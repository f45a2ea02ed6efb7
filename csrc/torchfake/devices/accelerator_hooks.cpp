// PyTorch's accelerator hooks while fakes claim an accelerator, whether that is present or not.
#include <ATen/detail/HPUHooksInterface.h>
#include <ATen/detail/MAIAHooksInterface.h>
#include <ATen/detail/MPSHooksInterface.h>
#include <ATen/detail/MTIAHooksInterface.h>
#include <ATen/detail/XPUHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <torchfake/core/activation.h>
#include <torchfake/core/fake_mode.h>
#include <torchfake/core/fake_tensor_impl.h>
#include <torchfake/devices/absent_devices.h>

#include <forwarding_hooks.h>

#include <atomic>

namespace torchfake {

namespace {

// PyTorch assumes a single accelerator: on this thread, the one claimed last.
bool is_claimed(c10::DeviceType type) {
  return in_fake_mode() && last_claimed_accelerator() == type;
}

// Whether the hooks report this device as available. A claimed accelerator takes precedence over one that is present.
bool is_present_or_claimed(c10::DeviceType type, bool is_present) {
  if (!in_fake_mode()) {
    return is_present;
  }
  const c10::DeviceType claimed = last_claimed_accelerator();
  return claimed == type || (claimed == c10::kCPU && is_present);
}

// Note [Accelerator hooks]
// Autograd and `x.cuda(2)` ask which accelerator the process has, and fail if it has none or too few devices. The
// answer comes from each backend's hooks. Their instances are created and cached when torch is loaded, so the objects
// must be replaced in place. They have no data members, so only their type changes: one pointer, which other threads
// may be reading. It changes only while fakes exist, because `x.is_pinned()` of a real tensor asks five of them. On a
// thread without a mode they behave like the originals; CUDA's original is kept for that, because a PyTorch with CUDA
// overrides more methods. No allocator exists in the mode: requesting one gives PyTorch's own error.
template <typename Hooks, c10::DeviceType kType>
class ClaimedHooks : public Hooks {
 public:
  bool isBuilt() const override {
    return is_present_or_claimed(kType, Hooks::isBuilt());
  }
  // Autograd saves the current stream of each device that has a context, and reads it back unchecked.
  bool hasPrimaryContext(c10::DeviceIndex device) const override {
    return is_claimed(kType) || Hooks::hasPrimaryContext(device);
  }
  c10::DeviceIndex getCurrentDevice() const override {
    return is_claimed(kType) ? c10::impl::getDeviceGuardImpl(kType)->getDevice().index() : Hooks::getCurrentDevice();
  }
  // The caller names the device, which may not have been claimed yet.
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return in_fake_mode() ? new_claimed_generator(c10::Device(kType, index)) : Hooks::getNewGenerator(index);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    return in_fake_mode() ? default_claimed_generator(c10::Device(kType, index)) : Hooks::getDefaultGenerator(index);
  }
};

class ClaimedCudaHooks final : public ClaimedHooks<ForwardingCudaHooks, c10::kCUDA> {
 public:
  bool hasCUDA() const override {
    return is_present_or_claimed(c10::kCUDA, ForwardingCudaHooks::hasCUDA());
  }
  c10::DeviceIndex current_device() const override {
    return is_claimed(c10::kCUDA) ? getCurrentDevice() : ForwardingCudaHooks::current_device();
  }
  std::string showConfig() const override {
    return is_claimed(c10::kCUDA) && !ForwardingCudaHooks::hasCUDA() ? "" : ForwardingCudaHooks::showConfig();
  }
  // Which kernels are used is decided by the rules, which follow recordings of GPUs.
  bool compiledWithCuDNN() const override {
    return !is_claimed(c10::kCUDA) && ForwardingCudaHooks::compiledWithCuDNN();
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

// While fakes exist, MAIA has a guard, so PyTorch assumes that the backend can describe its build configuration.
class ClaimedMaiaHooks final : public at::MAIAHooksInterface {
 public:
  std::string showConfig() const override {
    return "";
  }
};

// Replaces `hooks` in place by hooks of type `Claimed`, and restores them.
template <typename Claimed, typename Hooks>
class Replacement {
 public:
  static void install(const Hooks& hooks) {
    static_assert(sizeof(Claimed) == sizeof(void*) && sizeof(Hooks) == sizeof(void*));
    static const Claimed* const claimed = new Claimed();  // never destroyed, as PyTorch's own
    place() = &hooks;
    void* const before = type_of(&hooks).load();
    if (aside() != before) {  // other threads may still be in a call forwarded to it
      aside() = before;
    }
    type_of(&hooks).store(type_of(claimed).load());
  }
  static void remove() {
    if (place() != nullptr) {
      type_of(place()).store(aside());
      place() = nullptr;
    }
  }
  // The original, to which calls are forwarded.
  static const Hooks* original() {
    return reinterpret_cast<const Hooks*>(&aside());
  }

 private:
  // An object without data members consists of the pointer to its virtual functions.
  static std::atomic_ref<void*> type_of(const void* hooks) {
    return std::atomic_ref<void*>(*static_cast<void**>(const_cast<void*>(hooks)));
  }
  static const Hooks*& place() {
    static const Hooks* place = nullptr;
    return place;
  }
  static void*& aside() {
    static void* aside = nullptr;
    return aside;
  }
};

template <typename Claimed, typename Hooks>
void replace_where_absent(const Hooks& hooks, c10::DeviceType type) {
  if (is_absent(type)) {
    Replacement<Claimed, Hooks>::install(hooks);
  }
}

using CudaReplacement = Replacement<ClaimedCudaHooks, at::CUDAHooksInterface>;

void install() {
  ForwardingCudaHooks::to = CudaReplacement::original();
  CudaReplacement::install(at::detail::getCUDAHooks());
  replace_where_absent<ClaimedMtiaHooks>(at::detail::getMTIAHooks(), c10::kMTIA);
  replace_where_absent<ClaimedXpuHooks>(at::detail::getXPUHooks(), c10::kXPU);
  replace_where_absent<ClaimedMpsHooks>(at::detail::getMPSHooks(), c10::kMPS);
  replace_where_absent<ClaimedHpuHooks>(at::detail::getHPUHooks(), c10::kHPU);
  replace_where_absent<ClaimedMaiaHooks>(at::detail::getMAIAHooks(), c10::kMAIA);
}

void remove() {
  CudaReplacement::remove();
  Replacement<ClaimedMtiaHooks, at::MTIAHooksInterface>::remove();
  Replacement<ClaimedXpuHooks, at::XPUHooksInterface>::remove();
  Replacement<ClaimedMpsHooks, at::MPSHooksInterface>::remove();
  Replacement<ClaimedHpuHooks, at::HPUHooksInterface>::remove();
  Replacement<ClaimedMaiaHooks, at::MAIAHooksInterface>::remove();
}

// See Note [Activation].
const RegisterChange g_hooks(Span::kWhileFakes, {&install, &remove});

}  // namespace

}  // namespace torchfake
