// Step 3 of 5: same operator, same metadata, same arguments: the same outputs, without running anything.
#pragma once

#include <torchfake/core/errors.h>
#include <torchfake/dispatch/cache_key.h>
#include <torchfake/dispatch/wrap_outputs.h>

#include <c10/util/flat_hash_map.h>

#include <atomic>
#include <map>

namespace torchfake {

// How to make one output.
struct OutputRecipe {
  enum class Kind : uint8_t { kFresh, kView, kInput, kUndefined, kConstant };
  Kind kind = Kind::kConstant;
  uint32_t input = 0;  // kView, kInput: index into the call's tensors
  bool is_wrapped_number = false;
  c10::Device device{c10::kCPU};
  c10::DispatchKeySet keys;
  caffe2::TypeMeta dtype;
  FakeGeometry geometry;
  size_t nbytes = 0;  // kFresh: of the storage
  uint32_t version = 0;  // kFresh: how often the kernel wrote to it
  c10::IValue constant;  // kConstant: what is no tensor

  bool operator==(const OutputRecipe& other) const;
};

// What a call does to an input: its geometry afterwards, and how often its kernel counted up the version.
struct InputChange {
  uint32_t input = 0;
  uint32_t version_bumps = 0;
  bool moved = false;  // the rest changed too; where it did not, it says nothing
  c10::SmallVector<int64_t, 5> sizes;
  c10::SmallVector<int64_t, 5> strides;
  int64_t storage_offset = 0;
  size_t nbytes = 0;

  bool operator==(const InputChange& other) const;
};

// The error that a call ends in: what to throw again.
struct ErrorOutcome {
  enum class Type : uint8_t { kPlain, kTyped, kIndex, kValue, kType, kNotImplemented, kLinAlg };
  Type type = Type::kPlain;
  ErrorKind kind = ErrorKind::kDataAccess;  // of kTyped
  std::string op;
  std::string message;
};

// The outcome of a call: outputs and changes, or the error it ends in. But for `constant`, it never changes once it is in
// the cache. Small ones are one block of memory: a cache that has filled is read from places that no cache of the CPU
// holds, and every further block is a further wait.
struct CacheEntry final : c10::intrusive_ptr_target {
  c10::SmallVector<uint64_t, 24> key;
  uint64_t hash = 0;
  c10::SmallVector<OutputRecipe, 1> outputs;
  // For each value returned: how many of `outputs` it takes, as a list, or -1 for one that is no list.
  c10::SmallVector<int32_t, 4> returns;
  std::vector<InputChange> changes;
  bool is_one_tensor = false;  // the usual case: one value returned, a tensor
  int64_t largest_output = 0;  // in elements
  c10::Device device{c10::kCPU};
  std::unique_ptr<ErrorOutcome> error;  // null for a call that succeeds

  // When it was last used: a cell of the shard's. See Shard.
  std::atomic<uint64_t>* last_used = nullptr;
  // The values of the output, where they follow from the key: owned, set once. See Note [Constants].
  mutable std::atomic<c10::StorageImpl*> constant{nullptr};

  ~CacheEntry() override;

  size_t bytes() const;
  bool same_outcome(const CacheEntry& other) const;
};

using CacheEntryPtr = c10::intrusive_ptr<CacheEntry>;

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

// What has to be remembered of a call before its kernel runs, to make an entry of it afterwards.
class OutcomeRecorder {
 public:
  explicit OutcomeRecorder(const Call& call);

  // The entry for what the call has returned; or, in `reason`, why there is none.
  CacheEntryPtr outcome(const Call& call, const CacheKey& key, c10::Device device, Bypass& reason) const;

 private:
  struct Before {
    c10::intrusive_ptr<c10::TensorImpl> tensor;
    const c10::StorageImpl* storage;
    bool is_written;
    c10::SmallVector<int64_t, 5> sizes;
    c10::SmallVector<int64_t, 5> strides;
    int64_t storage_offset = 0;
    size_t nbytes = 0;
    uint32_t version = 0;
    c10::DispatchKeySet keys;
  };

  OutputRecipe recipe(const at::Tensor& output) const;
  std::optional<uint32_t> input_that_is(const c10::TensorImpl& output) const;
  std::optional<uint32_t> input_sharing(const c10::StorageImpl* storage) const;

  c10::SmallVector<Before, 8> inputs_;
  // The same by tensor and by storage, for calls with long lists.
  ska::flat_hash_map<const void*, uint32_t> index_;
};

// The entry for an error that the call ended in; null for one that may not come again (memory that ran out), or whose
// type cannot be told.
CacheEntryPtr error_outcome(const CacheKey& key, const c10::Error& error);

// Makes an output that is a tensor; `tensors` are those of the call. In this order: the outputs, then the changes.
at::Tensor make_output(const OutputRecipe& recipe, c10::ArrayRef<TensorArg> tensors, const ModePtr& mode);
void apply_changes(const CacheEntry& entry, c10::ArrayRef<TensorArg> tensors);

// Replaces the arguments on the stack by what the entry says. Throws the entry's error.
void replay(const Call& call, const CacheEntry& entry, const ModePtr& mode);

}  // namespace torchfake
