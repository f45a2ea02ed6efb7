// DistributedDataParallel's timers for an absent GPU: none, as in a PyTorch built without CUDA.
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

#include <torchfake/core/activation.h>
#include <torchfake/devices/absent_devices.h>

namespace torchfake {

namespace {

std::unique_ptr<c10d::Timer> no_timer(c10::Device /*device*/) {
  return nullptr;
}

// A PyTorch built with CUDA times a model's passes with events of the driver. The registry cannot remove an entry, but
// without a GPU the previous one is of no use either.
void replace_timer() {
  static const bool replaced = [] {
    if (is_absent(c10::kCUDA)) {
      c10d::TimerRegistry()->Register(c10::kCUDA, &no_timer, c10::REGISTRY_PREFERRED);
    }
    return true;
  }();
  static_cast<void>(replaced);
}

// See Note [Activation].
const RegisterChange g_timer(Span::kOnceActive, {&replace_timer, [] {}});

}  // namespace

}  // namespace torchfake
