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

void DeferredAllocations::add(StorageContext* context, std::shared_ptr<StorageObserver> observer) {
  // Several outputs may be views of the same storage.
  const bool waits =
      std::any_of(waiting_.begin(), waiting_.end(), [&](const Waiting& waiting) { return waiting.context == context; });
  if (!waits) {
    waiting_.push_back({context, std::move(observer)});
  }
}

void DeferredAllocations::forget(const StorageContext* context) {
  for (DeferredAllocations* scope = this; scope != nullptr; scope = scope->outer_) {
    std::erase_if(scope->waiting_, [&](const Waiting& waiting) { return waiting.context == context; });
  }
}

void DeferredAllocations::tell(Waiting waiting) {
  StorageContext& context = *waiting.context;
  waiting.observer->on_alloc(allocation_of(&context, context.device(), context.nbytes));
  context.observer = std::move(waiting.observer);
}

void DeferredAllocations::tell(c10::StorageImpl* storage) {
  const StorageContext* context = storage_context(storage);
  const auto found = std::find_if(
      waiting_.begin(), waiting_.end(), [&](const Waiting& waiting) { return waiting.context == context; });
  if (found == waiting_.end()) {
    return;  // an input, or already reported
  }
  Waiting waiting = std::move(*found);
  waiting_.erase(found);
  tell(std::move(waiting));
}

void DeferredAllocations::tell_rest() {
  for (Waiting& waiting : std::exchange(waiting_, {})) {
    tell(std::move(waiting));
  }
}

}  // namespace torchfake
