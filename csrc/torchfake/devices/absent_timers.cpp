// The timers of DistributedDataParallel on a GPU that is not there: none, as in a PyTorch that was built without CUDA.
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

#include <torchfake/core/activation.h>
#include <torchfake/devices/absent_devices.h>

namespace torchfake {

namespace {

std::unique_ptr<c10d::Timer> no_timer(c10::Device /*device*/) {
  return nullptr;
}

// A PyTorch built with CUDA times the passes of a model by events of the driver. The registry has no way to take an entry
// back, and where CUDA finds no GPU the one before it answers nobody.
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
