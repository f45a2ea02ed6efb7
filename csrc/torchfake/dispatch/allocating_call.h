// The call that allocations on this thread belong to.
#pragma once

#include <torchfake/core/allocation.h>
#include <torchfake/core/call.h>
#include <torchfake/core/fake_mode.h>
#include <torchfake/core/scoped.h>
#include <torchfake/memory/ledger.h>

#include <algorithm>

namespace torchfake {

// Whether a mode's storages are reported one by one, not only counted.
inline bool reports_storages(const ModeState& mode) {
  const StorageObserver* observer = mode.options.storage_observer.get();
  return observer != nullptr && observer->counts() == nullptr;
}

// While alive, allocations on this thread are attributed to a call with these arguments.
class AllocatingCall {
 public:
  AllocatingCall(const OpTraits& traits, c10::ArrayRef<TensorArg> tensors, const ModeState& mode)
      : op_(traits.name),
        takes_gradients_(
            memory::ledger_context().takes_gradients,
            reports_storages(mode) && std::any_of(tensors.begin(), tensors.end(), [](const TensorArg& tensor) {
              return tensor.impl->requires_grad();
            })) {}

 private:
  const AllocatingOperator op_;
  const Scoped<bool> takes_gradients_;
};

}  // namespace torchfake
