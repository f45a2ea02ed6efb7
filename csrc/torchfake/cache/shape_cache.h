// The table of outcomes: same operator, same metadata, same arguments, so the same outputs without running anything.
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
// One table for the process, in shards with a lock each, and before it a small table of each thread's own. A hit in the
// thread's table takes no lock and writes nothing that others read, but for the entry's time of last use, and that once
// an epoch. Hazard: an entry evicted from the shared table may live on in a thread's; it holds no references to
// anything, so an old answer is still a right one. `clear()` starts a new generation, which empties the threads' tables
// when they are next used.
namespace shape_cache {

// The entry for a key, or null. Counts a hit or a miss. The entry lives until this thread calls `find` again.
const CacheEntry* find(const CacheKey& key);

// The same in this thread's own table alone, and counts nothing: `count_hit` does, once the entry has been used.
const CacheEntry* peek(const CacheKey& key);
void count_hit(const CacheEntry& entry);

// Adds an entry, evicting the least recently used where the cache is full.
void insert(CacheEntryPtr entry);

// Gives an entry the values of its output, a CPU storage that nobody else writes to. The first one stays.
void set_constant(const CacheEntry& entry, c10::intrusive_ptr<c10::StorageImpl> bytes);

void count_bypass(Bypass reason);

CacheInfo info();
void clear();
void set_limits(size_t max_entries, size_t max_bytes);

// Whether it answers, for all modes and threads: switched on, and held off by no NoCache.
bool enabled();
void set_enabled(bool enabled);
// Whether the kernel runs on a hit as well, to be compared: switched on, or asked for by a CrossCheck.
bool cross_check();
void set_cross_check(bool cross_check);
// Whether a hit is all that a call needs: enabled, and not cross-checked.
bool answers_alone();

// While one lives, the cache answers no call, on any thread: of any mode, or of `mode` alone where one is given. Scopes may
// overlap in any order, and end on another thread than they began on.
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

// While one lives, every hit is compared with the kernel, on all threads. Scopes overlap as those of NoCache do.
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
