// Remembers what stands for what, keeping neither alive.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <torchfake/core/fake_mode.h>

#include <mutex>
#include <unordered_map>

namespace torchfake {

// From a tensor or storage, a mode and a device to the fake one that stands for it there. An entry whose source or
// fake is gone counts as absent, and is swept out when the table has doubled. A fake keeps its mode alive, so the
// address of a dead mode cannot be met again in a live entry.
template <typename Impl>
class WeakMemo {
 public:
  struct Key {
    const void* source;
    const void* mode;
    c10::Device device;
    bool operator==(const Key& other) const {
      return source == other.source && mode == other.mode && device == other.device;
    }
  };

  c10::intrusive_ptr<Impl> find(const Key& key) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = entries_.find(key);
    return found == entries_.end() || found->second.source.expired() ? c10::intrusive_ptr<Impl>()
                                                                     : found->second.fake.lock();
  }

  void remember(const Key& key, const c10::intrusive_ptr<Impl>& source, const c10::intrusive_ptr<Impl>& fake) {
    std::lock_guard<std::mutex> lock(mutex_);
    entries_.erase(key);
    entries_.emplace(key, Entry{Weak(source), Weak(fake)});
    sweep();
  }

 private:
  using Weak = c10::weak_intrusive_ptr<Impl>;
  struct KeyHash {
    size_t operator()(const Key& key) const {
      return std::hash<const void*>()(key.source) ^ std::hash<const void*>()(key.mode) * 31 ^
          std::hash<c10::Device>()(key.device) * 1009;
    }
  };
  struct Entry {
    Weak source;
    Weak fake;
  };

  void sweep() {
    if (entries_.size() < next_sweep_) {
      return;
    }
    for (auto entry = entries_.begin(); entry != entries_.end();) {
      const bool dead = entry->second.source.expired() || entry->second.fake.expired();
      entry = dead ? entries_.erase(entry) : std::next(entry);
    }
    next_sweep_ = std::max<size_t>(64, entries_.size() * 2);
  }

  std::mutex mutex_;
  std::unordered_map<Key, Entry, KeyHash> entries_;
  size_t next_sweep_ = 64;
};

}  // namespace torchfake
