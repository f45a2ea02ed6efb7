// Two observers for one mode: a memory model together with the previous counting observer.
#pragma once

#include <torchfake/memory/memory_model.h>

#include <memory>
#include <utility>

namespace torchfake::memory {

class ObserverPair final : public StorageObserver, public CollectiveObserver {
 public:
  // If `first` refuses an allocation, `second` is not notified of it.
  ObserverPair(std::shared_ptr<StorageObserver> first, std::shared_ptr<StorageObserver> second)
      : StorageObserver(Direct{second->counts() == nullptr ? nullptr : first->direct().observer, second->counts()}),
        first_(std::move(first)),
        second_(std::move(second)) {}

  const std::shared_ptr<StorageObserver>& first() const {
    return first_;
  }
  const std::shared_ptr<StorageObserver>& second() const {
    return second_;
  }

  void on_alloc(const Allocation& allocation) override {
    first_->on_alloc(allocation);
    second_->on_alloc(allocation);
  }
  void on_resize(const Allocation& allocation, size_t old_nbytes) override {
    first_->on_resize(allocation, old_nbytes);
    second_->on_resize(allocation, old_nbytes);
  }
  void on_free(const void* id, c10::Device device, size_t nbytes) noexcept override {
    first_->on_free(id, device, nbytes);
    second_->on_free(id, device, nbytes);
  }
  void on_collective(const void* id) noexcept override {
    for (StorageObserver* observer : {first_.get(), second_.get()}) {
      if (auto* interested = dynamic_cast<CollectiveObserver*>(observer)) {
        interested->on_collective(id);
      }
    }
  }

 private:
  std::shared_ptr<StorageObserver> first_;
  std::shared_ptr<StorageObserver> second_;
};

// The memory model inside an observer, or null.
inline MemoryModel* model_among(StorageObserver* observer) {
  const auto* pair = dynamic_cast<const ObserverPair*>(observer);
  return dynamic_cast<MemoryModel*>(pair != nullptr ? pair->first().get() : observer);
}

}  // namespace torchfake::memory
