// The table of outcomes: the same operator with the same metadata and arguments gives the same outputs without running
// anything.
#pragma once

#include <torchfake/cache/outcome.h>

#include <map>

namespace torchfake {

struct CacheInfo {
  uint64_t hits = 0;
  uint64_t misses = 0;
  std::map<std::string, uint64_t> bypasses;
  size_t size = 0;
  size_t bytes = 0;
  size_t max_size = 0;
  size_t max_bytes = 0;
};

// Note [Reading the cache]
// The process has one table, in shards with a lock each; in front of it, every thread has a small table of its own. A
// hit in the thread's table takes no lock and writes nothing that other threads read except the entry's time of last
// use, at most once per epoch. Hazard: an entry evicted from the shared table may survive in a thread's table; it holds
// no references to anything, and an old outcome is still correct. `clear()` starts a new generation, which empties each
// thread's table when it is next used.
namespace shape_cache {

// The entry for a key, or null. Counts a hit or a miss. The entry is valid until this thread calls `find` again.
const CacheEntry* find(const CacheKey& key);

// Looks only in this thread's own table and counts nothing: `count_hit` does, once the entry has been used.
const CacheEntry* peek(const CacheKey& key);
void count_hit(const CacheEntry& entry);

// Adds an entry, evicting the least recently used ones if the cache is full.
void insert(CacheEntryPtr entry);

// Attaches the values of its outputs to an entry: once if they depend on the key only, otherwise for a few different
// sources.
void set_values(const CacheEntry& entry, c10::intrusive_ptr<DerivedValues> values);
// Whether the entry has room for the values of further sources.
bool takes_values(const CacheEntry& entry);

// Counts a call that bypassed the cache.
void count_bypass(Bypass reason);

// The counters of all threads since the last `clear`, and the limits.
CacheInfo info();
void clear();
// Sets the limits and empties the cache.
void set_limits(size_t max_entries, size_t max_bytes);

// Whether the cache is enabled, for all modes and threads: switched on, and not held off by a NoCache.
bool enabled();
void set_enabled(bool enabled);
// Whether the kernel also runs on a hit, to be compared: switched on, or requested by a CrossCheck.
bool cross_check();
void set_cross_check(bool cross_check);
// Whether a hit completes a call: the cache is enabled and not being cross-checked.
bool hits_complete_calls();

// While alive, the cache is not used on any thread: by any mode, or by `mode` alone if given. Scopes may overlap in any
// order, and end on another thread than they began on.
class NoCache {
 public:
  explicit NoCache(ModePtr mode = {});
  ~NoCache();
  NoCache(const NoCache&) = delete;
  NoCache& operator=(const NoCache&) = delete;
  NoCache(NoCache&&) = delete;
  NoCache& operator=(NoCache&&) = delete;

 private:
  const ModePtr mode_;
};

// While alive, every hit on any thread is compared with the kernel. Scopes may overlap, as with NoCache.
class CrossCheck {
 public:
  CrossCheck();
  ~CrossCheck();
  CrossCheck(const CrossCheck&) = delete;
  CrossCheck& operator=(const CrossCheck&) = delete;
  CrossCheck(CrossCheck&&) = delete;
  CrossCheck& operator=(CrossCheck&&) = delete;
};

}  // namespace shape_cache

}  // namespace torchfake
