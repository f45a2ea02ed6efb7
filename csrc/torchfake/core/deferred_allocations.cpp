// Allocations of one operator that are reported to the observer later.
#include <torchfake/core/deferred_allocations.h>

#include <algorithm>
#include <utility>

namespace torchfake {

namespace {

__attribute__((tls_model("initial-exec"))) thread_local DeferredAllocations* t_current = nullptr;

}  // namespace

DeferredAllocations::DeferredAllocations() : outer_(std::exchange(t_current, this)) {}

DeferredAllocations::~DeferredAllocations() {
  t_current = outer_;
}

DeferredAllocations* DeferredAllocations::current() {
  return t_current;
}

void DeferredAllocations::add(
    c10::StorageImpl* storage,
    c10::Device device,
    std::shared_ptr<StorageObserver> observer) {
  // Several outputs may be views of the same storage.
  const bool waits =
      std::any_of(waiting_.begin(), waiting_.end(), [&](const Waiting& waiting) { return waiting.storage == storage; });
  if (!waits) {
    waiting_.push_back({storage, device, std::move(observer)});
  }
}

void DeferredAllocations::forget(const c10::StorageImpl* storage) {
  for (DeferredAllocations* scope = this; scope != nullptr; scope = scope->outer_) {
    std::erase_if(scope->waiting_, [&](const Waiting& waiting) { return waiting.storage == storage; });
  }
}

void DeferredAllocations::tell(c10::StorageImpl* storage) {
  const auto found = std::find_if(
      waiting_.begin(), waiting_.end(), [&](const Waiting& waiting) { return waiting.storage == storage; });
  if (found == waiting_.end()) {
    return;  // an input, or already reported
  }
  const Waiting waiting = std::move(*found);
  waiting_.erase(found);
  report_allocation(waiting.storage, waiting.device, waiting.observer);
}

void DeferredAllocations::tell_rest() {
  for (const Waiting& waiting : std::exchange(waiting_, {})) {
    report_allocation(waiting.storage, waiting.device, waiting.observer);
  }
}

}  // namespace torchfake
