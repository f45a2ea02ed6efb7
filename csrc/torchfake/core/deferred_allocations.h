// Storages of one operator whose allocation is told later, in the order in which the operator's kernel allocates.
#pragma once

#include <torchfake/core/fake_storage.h>

#include <vector>

namespace torchfake {

// While one lives, the storages that this thread makes are not told to their observer: tell() does it, one by one. The
// inner of two has them. Nothing that lives longer may depend on one that was never told: it is freed untold as well.
class DeferredAllocations {
 public:
  DeferredAllocations();
  ~DeferredAllocations();
  DeferredAllocations(const DeferredAllocations&) = delete;
  DeferredAllocations& operator=(const DeferredAllocations&) = delete;
  DeferredAllocations(DeferredAllocations&&) = delete;
  DeferredAllocations& operator=(DeferredAllocations&&) = delete;

  // That of this thread, or null.
  static DeferredAllocations* current();

  void add(StorageContext* context, std::shared_ptr<StorageObserver> observer);
  void forget(const StorageContext* context);

  // Tells of the storage if it is among those that wait. Throws what the observer throws.
  void tell(c10::StorageImpl* storage);
  // The same of all that wait still, in the order in which they were made.
  void tell_rest();

 private:
  struct Waiting {
    StorageContext* context;
    std::shared_ptr<StorageObserver> observer;
  };

  static void tell(Waiting waiting);

  std::vector<Waiting> waiting_;
  DeferredAllocations* const outer_;
};

}  // namespace torchfake
