// Tells the observer what a kernel takes beside its outputs.
#include <torchfake/cache/side_allocations.h>

#include <torchfake/core/call_context.h>

namespace torchfake {

void announce_allocations(c10::ArrayRef<SideAllocation> allocations, const ModePtr& mode) {
  if (C10_LIKELY(mode->options.storage_observer == nullptr) || allocations.empty() || InKernel::active()) {
    return;
  }
  StorageObserver& observer = *mode->options.storage_observer;
  size_t told = 0;
  const auto end = [&] {
    for (const SideAllocation& allocation : allocations.slice(0, told)) {
      observer.on_free(nullptr, allocation.device, allocation.nbytes);
    }
  };
  try {
    for (const SideAllocation& allocation : allocations) {
      observer.on_alloc(allocation_of(nullptr, allocation.device, allocation.nbytes));
      ++told;
    }
  } catch (...) {
    end();
    throw;
  }
  end();
}

}  // namespace torchfake
