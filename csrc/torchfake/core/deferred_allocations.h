// Allocations of one operator that are reported later, in the order in which the operator's kernel allocates.
#pragma once

#include <torchfake/core/fake_storage.h>

#include <vector>

namespace torchfake {

// While alive, storages created on this thread are not reported to their observer until tell() reports them one by one.
// If two are nested, the inner one collects. A storage that is never reported is not reported as freed either, so it
// must not outlive this object.
class DeferredAllocations {
 public:
  DeferredAllocations();
  ~DeferredAllocations();
  DeferredAllocations(const DeferredAllocations&) = delete;
  DeferredAllocations& operator=(const DeferredAllocations&) = delete;
  DeferredAllocations(DeferredAllocations&&) = delete;
  DeferredAllocations& operator=(DeferredAllocations&&) = delete;

  // The innermost one of this thread, or null.
  static DeferredAllocations* current();

  void add(c10::StorageImpl* storage, c10::Device device, std::shared_ptr<StorageObserver> observer);
  void forget(const c10::StorageImpl* storage);

  // Reports the storage if it is pending. Throws what the observer throws.
  void tell(c10::StorageImpl* storage);
  // Reports all pending storages, in creation order.
  void tell_rest();

 private:
  struct Waiting {
    c10::StorageImpl* storage;
    c10::Device device;
    std::shared_ptr<StorageObserver> observer;
  };

  std::vector<Waiting> waiting_;
  DeferredAllocations* const outer_;
};

}  // namespace torchfake
