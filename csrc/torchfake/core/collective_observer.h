// What an observer of storages may also be: one that is told which storages collectives send and receive.
#pragma once

namespace torchfake {

// Implemented by an observer in addition to StorageObserver, and found by dynamic_cast: collectives are rare.
class CollectiveObserver {
 public:
  virtual ~CollectiveObserver() = default;

  // A collective has read or written the storage `id`, or returned it.
  virtual void on_collective(const void* id) noexcept = 0;
};

}  // namespace torchfake
