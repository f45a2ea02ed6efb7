// A weak map from sources to the fakes that stand for them; it keeps neither alive.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <torchfake/core/fake_mode.h>

#include <mutex>
#include <unordered_map>
#include <vector>

namespace torchfake {

// Maps a tensor or storage, a mode and a device to the fake that stands for it. An entry whose source or fake is gone
// counts as absent, and is removed when the table has doubled. A fake keeps its mode alive, so a live entry never
// contains the address of a dead mode. Thread-safe.
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
    return find_locked(key);
  }

  // The fakes that stand for `source`, in all modes.
  std::vector<c10::intrusive_ptr<Impl>> find_all(const void* source) {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<c10::intrusive_ptr<Impl>> found;
    for (const auto& [key, entry] : entries_) {
      if (key.source == source && !entry.source.expired()) {
        if (c10::intrusive_ptr<Impl> fake = entry.fake.lock()) {
          found.push_back(std::move(fake));
        }
      }
    }
    return found;
  }

  // Makes `fake` stand for `source`, unless another thread has registered one meanwhile. Returns the registered one.
  c10::intrusive_ptr<Impl> remember_first(
      const Key& key,
      const c10::intrusive_ptr<Impl>& source,
      const c10::intrusive_ptr<Impl>& fake) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (c10::intrusive_ptr<Impl> found = find_locked(key)) {
      return found;
    }
    replace_locked(key, source, fake);
    return fake;
  }

  // Makes `fake` stand for `source`, replacing any other.
  void remember(const Key& key, const c10::intrusive_ptr<Impl>& source, const c10::intrusive_ptr<Impl>& fake) {
    std::lock_guard<std::mutex> lock(mutex_);
    replace_locked(key, source, fake);
  }

  void forget(const Key& key) {
    std::lock_guard<std::mutex> lock(mutex_);
    entries_.erase(key);
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

  c10::intrusive_ptr<Impl> find_locked(const Key& key) const {
    const auto found = entries_.find(key);
    return found == entries_.end() || found->second.source.expired() ? c10::intrusive_ptr<Impl>()
                                                                     : found->second.fake.lock();
  }

  void replace_locked(const Key& key, const c10::intrusive_ptr<Impl>& source, const c10::intrusive_ptr<Impl>& fake) {
    entries_.erase(key);
    entries_.emplace(key, Entry{Weak(source), Weak(fake)});
    sweep();
  }

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
