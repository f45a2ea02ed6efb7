// An optional interface of storage observers: notified of the storages that collectives send and receive.
#pragma once

namespace torchfake {

// Implemented by an observer in addition to StorageObserver. Found by dynamic_cast, since collectives are rare.
class CollectiveObserver {
 public:
  virtual ~CollectiveObserver() = default;

  // A collective has read or written the storage `id`, or returned it.
  virtual void on_collective(const void* id) noexcept = 0;
};

}  // namespace torchfake
