// The table of outcomes.
#include <torchfake/cache/shape_cache.h>

#include <array>
#include <cstring>
#include <deque>
#include <list>
#include <mutex>

namespace torchfake {

namespace shape_cache {

namespace {

constexpr size_t kShards = 16;
constexpr size_t kThreadSlots = 4096;
constexpr size_t kMostValues = 4;  // lists of values of an entry, one for each of its sources
constexpr size_t kSmallCache = 1024;  // entries; a cache this small uses a single shard, so that its limits are exact

// Entries have numbered places. The time of last use is stored in a separate array, so that choosing a victim does not
// touch the entries. Hazard: a thread that still holds an evicted entry writes to the cell of its old place, which only
// makes another entry look more recently used; cells are never freed.
struct Shard {
  std::mutex mutex;
  ska::flat_hash_map<uint64_t, uint32_t> places;  // by hash: of two keys with the same hash the later one is kept
  std::vector<CacheEntryPtr> entries;  // by place; null if empty
  std::vector<uint32_t> free_places;
  std::deque<std::atomic<uint64_t>> ages;  // by place
  size_t bytes = 0;

  size_t size() const {
    return places.size();
  }
};

struct Shared {
  std::array<Shard, kShards> shards;
  std::atomic<uint64_t> generation{1};
  std::atomic<uint64_t> misses{0};
  std::array<std::atomic<uint64_t>, static_cast<size_t>(Bypass::kCount)> bypasses{};
  std::atomic<size_t> max_entries{1 << 16};
  std::atomic<size_t> max_bytes{size_t{256} << 20};
  SharedSwitch enabled{true};
  SharedSwitch unchecked{true};
};

// Never destroyed: threads may outlive static storage. Created at load time, before it can be used.
Shared* const g_shared = new Shared();

Shared& shared() {
  return *g_shared;
}

// A thread's own table and hit count; `info` sums the counts over all threads, including ended ones.
struct ThreadTable {
  struct Slot {
    uint64_t hash = 0;
    CacheEntryPtr entry;
  };

  ThreadTable();
  ~ThreadTable();

  std::array<Slot, kThreadSlots> slots;
  uint64_t generation = 0;
  std::atomic<uint64_t> hits{0};
};

// On the heap: the library's static TLS block has to stay small. Every call reads this bare pointer; accessing its
// owner, which has a destructor, would cost a check and a call.
__attribute__((tls_model("initial-exec"))) thread_local ThreadTable* t_table = nullptr;

struct ThreadTables {
  std::mutex mutex;
  std::list<ThreadTable*> live;
  uint64_t hits_of_the_dead = 0;
};

ThreadTables& thread_tables() {
  static auto* tables = new ThreadTables();
  return *tables;
}

ThreadTable::ThreadTable() {
  std::lock_guard<std::mutex> lock(thread_tables().mutex);
  thread_tables().live.push_back(this);
}

ThreadTable::~ThreadTable() {
  std::lock_guard<std::mutex> lock(thread_tables().mutex);
  thread_tables().hits_of_the_dead += hits.load(std::memory_order_relaxed);
  thread_tables().live.remove(this);
  t_table = nullptr;
}

ThreadTable& new_thread_table() {
  static thread_local std::unique_ptr<ThreadTable> table;
  if (!table) {
    table = std::make_unique<ThreadTable>();
    t_table = table.get();
  }
  return *table;
}

ThreadTable& thread_table() {
  return C10_LIKELY(t_table != nullptr) ? *t_table : new_thread_table();
}

void forget_old_generation(ThreadTable& table) {
  const uint64_t generation = shared().generation.load(std::memory_order_acquire);
  if (C10_UNLIKELY(table.generation != generation)) {
    for (ThreadTable::Slot& slot : table.slots) {
      slot = {};
    }
    table.generation = generation;
  }
}

void touch(const CacheEntry& entry) {
  // Time is counted in misses: between two misses nothing is evicted, and nothing needs to be written.
  const uint64_t now = shared().misses.load(std::memory_order_relaxed);
  if (entry.last_used->load(std::memory_order_relaxed) != now) {
    entry.last_used->store(now, std::memory_order_relaxed);
  }
}

bool matches(const CacheEntry& entry, const CacheKey& key) {
  return entry.key.size() == key.words().size() &&
      std::memcmp(entry.key.data(), key.words().data(), entry.key.size() * sizeof(uint64_t)) == 0;
}

void count_hit(ThreadTable& table) {
  // Written only by this thread.
  table.hits.store(table.hits.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

size_t shards_in_use() {
  return shared().max_entries.load(std::memory_order_relaxed) < kSmallCache ? 1 : kShards;
}

Shard& shard_of(uint64_t hash) {
  return shared().shards[(hash >> 32) % shards_in_use()];
}

void drop(Shard& shard, uint32_t place) {
  shard.bytes -= shard.entries[place]->bytes();
  shard.places.erase(shard.entries[place]->hash);
  shard.entries[place].reset();
  shard.free_places.push_back(place);
}

// Evicts the least recently used quarter of a full shard, at least one entry.
void evict(Shard& shard) {
  std::vector<uint64_t> ages;
  ages.reserve(shard.size());
  for (size_t place = 0; place < shard.entries.size(); ++place) {
    if (shard.entries[place]) {
      ages.push_back(shard.ages[place].load(std::memory_order_relaxed));
    }
  }
  size_t to_drop = std::max<size_t>(1, ages.size() / 4);
  auto oldest = ages.begin() + static_cast<ptrdiff_t>(to_drop - 1);
  std::nth_element(ages.begin(), oldest, ages.end());
  const uint64_t limit = *oldest;
  for (size_t place = 0; place < shard.entries.size() && to_drop > 0; ++place) {
    if (shard.entries[place] && shard.ages[place].load(std::memory_order_relaxed) <= limit) {
      drop(shard, static_cast<uint32_t>(place));
      --to_drop;
    }
  }
}

// A free place for a new entry.
uint32_t take_place(Shard& shard) {
  if (!shard.free_places.empty()) {
    const uint32_t place = shard.free_places.back();
    shard.free_places.pop_back();
    return place;
  }
  shard.entries.emplace_back();
  if (shard.ages.size() < shard.entries.size()) {
    shard.ages.emplace_back(0);
  }
  return static_cast<uint32_t>(shard.entries.size() - 1);
}

}  // namespace

const CacheEntry* peek(const CacheKey& key) {
  ThreadTable& table = thread_table();
  forget_old_generation(table);
  const ThreadTable::Slot& slot = table.slots[key.hash() % kThreadSlots];
  return C10_LIKELY(slot.hash == key.hash() && slot.entry && matches(*slot.entry, key)) ? slot.entry.get() : nullptr;
}

void count_hit(const CacheEntry& entry) {
  touch(entry);
  count_hit(thread_table());
}

const CacheEntry* find(const CacheKey& key) {
  if (const CacheEntry* entry = peek(key)) {
    count_hit(*entry);
    return entry;
  }
  ThreadTable& table = thread_table();
  ThreadTable::Slot& slot = table.slots[key.hash() % kThreadSlots];
  Shard& shard = shard_of(key.hash());
  {
    std::lock_guard<std::mutex> lock(shard.mutex);
    const auto found = shard.places.find(key.hash());
    if (found != shard.places.end() && matches(*shard.entries[found->second], key)) {
      slot.hash = key.hash();
      slot.entry = shard.entries[found->second];
      count_hit(*slot.entry);
      return slot.entry.get();
    }
  }
  shared().misses.fetch_add(1, std::memory_order_relaxed);
  return nullptr;
}

void insert(CacheEntryPtr entry) {
  const size_t max_entries = shared().max_entries.load() / shards_in_use();
  const size_t max_bytes = shared().max_bytes.load() / shards_in_use();
  if (max_entries == 0 || entry->bytes() > max_bytes) {
    return;
  }
  Shard& shard = shard_of(entry->hash);
  std::lock_guard<std::mutex> lock(shard.mutex);
  if (const auto found = shard.places.find(entry->hash); found != shard.places.end()) {
    drop(shard, found->second);
  }
  while (shard.size() > 0 && (shard.size() >= max_entries || shard.bytes + entry->bytes() > max_bytes)) {
    evict(shard);
  }
  const uint32_t place = take_place(shard);
  entry->last_used = &shard.ages[place];
  entry->last_used->store(shared().misses.load(std::memory_order_relaxed), std::memory_order_relaxed);
  shard.bytes += entry->bytes();
  shard.places.emplace(entry->hash, place);
  shard.entries[place] = std::move(entry);
}

namespace {

// The last link of an entry's list of values, or null if the list is full.
std::atomic<const DerivedValues*>* end_of_values(const CacheEntry& entry) {
  std::atomic<const DerivedValues*>* place = &entry.values;
  for (size_t count = 0; const DerivedValues* stored = place->load(std::memory_order_acquire); ++count) {
    if (count + 1 == kMostValues) {
      return nullptr;
    }
    place = &stored->next;
  }
  return place;
}

// Whether the entry already holds these values: another thread may have stored them.
bool holds_values(const CacheEntry& entry, const DerivedValues& values) {
  const auto* stored = entry.values.load(std::memory_order_acquire);
  while (stored != nullptr && !stored->same_origin_as(values)) {
    stored = stored->next.load(std::memory_order_acquire);
  }
  return stored != nullptr;
}

}  // namespace

bool takes_values(const CacheEntry& entry) {
  return end_of_values(entry) != nullptr;
}

void set_values(const CacheEntry& entry, c10::intrusive_ptr<DerivedValues> values) {
  Shard& shard = shard_of(entry.hash);
  std::lock_guard<std::mutex> lock(shard.mutex);
  std::atomic<const DerivedValues*>* place = end_of_values(entry);
  if (place == nullptr || (values->sources.empty() && place != &entry.values) || holds_values(entry, *values)) {
    return;
  }
  const size_t max_bytes = shared().max_bytes.load() / shards_in_use();
  if (values->nbytes() > max_bytes) {
    return;
  }
  while (shard.size() > 0 && shard.bytes + values->nbytes() > max_bytes) {
    evict(shard);
  }
  const auto found = shard.places.find(entry.hash);
  const bool is_held = found != shard.places.end() && shard.entries[found->second].get() == &entry;
  shard.bytes += is_held ? values->nbytes() : 0;
  place->store(values.release(), std::memory_order_release);
}

void count_bypass(Bypass reason) {
  shared().bypasses[static_cast<size_t>(reason)].fetch_add(1, std::memory_order_relaxed);
}

CacheInfo info() {
  CacheInfo info;
  {
    std::lock_guard<std::mutex> lock(thread_tables().mutex);
    info.hits = thread_tables().hits_of_the_dead;
    for (const ThreadTable* table : thread_tables().live) {
      info.hits += table->hits.load(std::memory_order_relaxed);
    }
  }
  info.misses = shared().misses.load();
  for (size_t i = 1; i < shared().bypasses.size(); ++i) {
    if (const uint64_t count = shared().bypasses[i].load()) {
      info.bypasses[bypass_reason_name(static_cast<Bypass>(i))] = count;
    }
  }
  for (Shard& shard : shared().shards) {
    std::lock_guard<std::mutex> lock(shard.mutex);
    info.size += shard.size();
    info.bytes += shard.bytes;
  }
  info.max_size = shared().max_entries.load();
  info.max_bytes = shared().max_bytes.load();
  return info;
}

void clear() {
  for (Shard& shard : shared().shards) {
    std::lock_guard<std::mutex> lock(shard.mutex);
    shard.places.clear();
    shard.entries.clear();
    shard.free_places.clear();
    shard.bytes = 0;
  }
  shared().generation.fetch_add(1, std::memory_order_acq_rel);
  shared().misses.store(0);
  for (auto& bypass : shared().bypasses) {
    bypass.store(0);
  }
  std::lock_guard<std::mutex> lock(thread_tables().mutex);
  thread_tables().hits_of_the_dead = 0;
  for (ThreadTable* table : thread_tables().live) {
    table->hits.store(0, std::memory_order_relaxed);
  }
}

void set_limits(size_t max_entries, size_t max_bytes) {
  shared().max_entries.store(max_entries);
  shared().max_bytes.store(max_bytes);
  clear();
}

bool enabled() {
  return shared().enabled.is_on();
}

void set_enabled(bool enabled) {
  shared().enabled.turn(enabled);
}

bool hits_complete_calls() {
  return enabled() && !cross_check();
}

bool cross_check() {
  return !shared().unchecked.is_on();
}

void set_cross_check(bool cross_check) {
  shared().unchecked.turn(!cross_check);
}

NoCache::NoCache(ModePtr mode) : mode_(std::move(mode)) {
  (mode_ ? mode_->cache : shared().enabled).hold_off();
}

NoCache::~NoCache() {
  (mode_ ? mode_->cache : shared().enabled).release();
}

CrossCheck::CrossCheck() {
  shared().unchecked.hold_off();
}

CrossCheck::~CrossCheck() {
  shared().unchecked.release();
}

}  // namespace shape_cache

}  // namespace torchfake
