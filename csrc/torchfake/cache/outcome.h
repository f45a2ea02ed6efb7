// Outcomes of calls: recorded after a miss, replayed on a hit.
#pragma once

#include <c10/util/flat_hash_map.h>

#include <torchfake/cache/cache_key.h>
#include <torchfake/core/errors.h>
#include <torchfake/core/geometry.h>

#include <atomic>

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

// What a call does to an input.
struct InputChange {
  uint32_t input = 0;
  uint32_t version_bumps = 0;  // how often its kernel counted up the version
  std::optional<Geometry> geometry;  // afterwards, where it has changed

  bool operator==(const InputChange& other) const = default;
};

// A step of how a kernel allocates: memory that it takes and gives back before it returns, and its outputs in between.
struct SideAllocation {
  enum class Kind : uint8_t { kTake, kGiveBack, kOutput };

  c10::Device device{c10::kCPU};
  size_t nbytes = 0;
  Kind kind = Kind::kTake;
  uint32_t number = 0;  // kGiveBack: of a step that takes. kOutput: of an output, counting the tensors of lists

  bool operator==(const SideAllocation& other) const = default;
};

// The error that a call ends in: what to throw again.
struct ErrorOutcome {
  enum class Type : uint8_t { kPlain, kTyped, kIndex, kValue, kType, kNotImplemented, kLinAlg };
  Type type = Type::kPlain;
  ErrorKind kind = ErrorKind::kDataAccess;  // of kTyped
  std::string op;
  std::string message;
};

// What a call does: all of it, so that a hit leaves nothing out.
struct Outcome {
  c10::SmallVector<OutputRecipe, 1> outputs;
  // For each value returned: how many of `outputs` it takes, as a list, or -1 for one that is no list.
  c10::SmallVector<int32_t, 4> returns;
  std::vector<InputChange> changes;
  std::vector<SideAllocation> allocations;
  bool is_one_tensor = false;  // the usual case: one value returned, a tensor
  int64_t largest_output = 0;  // in elements
  c10::Device device{c10::kCPU};
  std::unique_ptr<ErrorOutcome> error;  // null for a call that succeeds

  bool same_as(const Outcome& other) const;
};

// An outcome in the cache. But for `constant`, it never changes once it is there. Small ones are one block of memory: a
// cache that has filled is read from memory that no cache of the CPU holds, and every further block is a further wait.
struct CacheEntry final : c10::intrusive_ptr_target, Outcome {
  c10::SmallVector<uint64_t, 24> key;
  uint64_t hash = 0;
  // When it was last used: a cell of the shard's. See Shard.
  std::atomic<uint64_t>* last_used = nullptr;
  // The values of the output, where they follow from the key: owned, set once. See Note [Constants].
  mutable std::atomic<c10::StorageImpl*> constant{nullptr};

  ~CacheEntry() override;

  size_t bytes() const;
};

using CacheEntryPtr = c10::intrusive_ptr<CacheEntry>;

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
    Geometry geometry;  // of one that is written
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

// Makes an output that is a tensor; `tensors` are those of the call. In this order: the outputs, then the rest.
at::Tensor make_output(const OutputRecipe& recipe, c10::ArrayRef<TensorArg> tensors, const ModePtr& mode);

// Whether `announce_and_apply` has anything to do.
inline bool has_effects(const Outcome& outcome) {
  return !outcome.changes.empty() || !outcome.allocations.empty();
}

// Announces allocations, which name no outputs, and applies changes. Throws what the mode's observer throws, having
// changed nothing.
void announce_and_apply(const Outcome& outcome, c10::ArrayRef<TensorArg> tensors, const ModePtr& mode);

// Replaces the arguments on the stack by what the outcome says. Throws the outcome's error.
void replay(const Call& call, const Outcome& outcome, const ModePtr& mode);

}  // namespace torchfake
