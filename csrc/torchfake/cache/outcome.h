// Outcomes of calls: recorded after a miss, replayed on a hit.
#pragma once

#include <c10/util/flat_hash_map.h>

#include <torchfake/cache/cache_key.h>
#include <torchfake/core/derived_values.h>
#include <torchfake/core/errors.h>
#include <torchfake/core/geometry.h>

#include <atomic>

namespace torchfake {

// The recipe for one output.
struct OutputRecipe {
  enum class Kind : uint8_t { kFresh, kView, kInput, kUndefined, kConstant };
  Kind kind = Kind::kConstant;
  uint32_t input = 0;  // kView, kInput: index into the call's tensors
  bool is_wrapped_number = false;
  c10::Device device{c10::kCPU};
  c10::DispatchKeySet keys;
  caffe2::TypeMeta dtype;
  FakeGeometry geometry;
  size_t nbytes = 0;  // kFresh: of the storage, in bytes
  uint32_t version = 0;  // kFresh: how often the kernel wrote to it
  c10::IValue constant;  // kConstant: a value that is not a tensor

  bool operator==(const OutputRecipe& other) const;
};

// The effect of a call on an input.
struct InputChange {
  uint32_t input = 0;
  uint32_t version_bumps = 0;  // how often its kernel incremented the version
  std::optional<Geometry> geometry;  // afterwards, if it has changed

  bool operator==(const InputChange& other) const = default;
};

// One step in a kernel's allocations: memory that it takes and returns before it ends, interleaved with its outputs.
struct SideAllocation {
  enum class Kind : uint8_t { kTake, kGiveBack, kOutput };

  c10::Device device{c10::kCPU};
  size_t nbytes = 0;
  Kind kind = Kind::kTake;
  uint32_t number = 0;  // kGiveBack: of a step that takes. kOutput: of an output, counting the tensors of lists

  bool operator==(const SideAllocation& other) const = default;
};

// The error that a call ends in, to be thrown again.
struct ErrorOutcome {
  enum class Type : uint8_t { kPlain, kTyped, kIndex, kValue, kType, kNotImplemented, kLinAlg };
  Type type = Type::kPlain;
  ErrorKind kind = ErrorKind::kDataAccess;  // for kTyped
  std::string op;
  std::string message;
};

// Everything a call does, so that a hit omits nothing.
struct Outcome {
  c10::SmallVector<OutputRecipe, 1> outputs;
  // For each returned value: how many of `outputs` it takes, as a list, or -1 if it is not a list.
  c10::SmallVector<int32_t, 4> returns;
  std::vector<InputChange> changes;
  std::vector<SideAllocation> allocations;
  bool is_one_tensor = false;  // the common case: one returned value, a tensor
  int64_t largest_output = 0;  // in elements
  c10::Device device{c10::kCPU};
  std::unique_ptr<ErrorOutcome> error;  // null for a successful call

  bool same_as(const Outcome& other) const;
};

// A cached outcome. Except for `values` it is immutable once stored. Small ones are a single block of memory: the
// entries of a full cache do not fit into the CPU's caches, and every further block is a further cache miss.
struct CacheEntry final : c10::intrusive_ptr_target, Outcome {
  c10::SmallVector<uint64_t, 24> key;
  uint64_t hash = 0;
  // When it was last used: a cell of the shard. See Shard.
  std::atomic<uint64_t>* last_used = nullptr;
  // The values of the outputs, a list: owned, set once. See Note [Constants].
  mutable std::atomic<const DerivedValues*> values{nullptr};

  ~CacheEntry() override;

  size_t bytes() const;
};

using CacheEntryPtr = c10::intrusive_ptr<CacheEntry>;

// What must be recorded before a call's kernel runs in order to create an entry afterwards.
class OutcomeRecorder {
 public:
  explicit OutcomeRecorder(const Call& call);

  // The entry for what the call has returned, or null with the reason in `reason`.
  CacheEntryPtr outcome(const Call& call, const CacheKey& key, c10::Device device, Bypass& reason) const;

 private:
  struct Before {
    c10::intrusive_ptr<c10::TensorImpl> tensor;
    const c10::StorageImpl* storage;
    bool is_written;
    Geometry geometry;  // of an argument that is written
    uint32_t version = 0;
    c10::DispatchKeySet keys;
  };

  // Records how the inputs have changed. Returns false if an entry cannot express it.
  bool record_changes(const Call& call, CacheEntry& entry) const;
  OutputRecipe recipe(const at::Tensor& output) const;
  std::optional<uint32_t> input_that_is(const c10::TensorImpl& output) const;
  std::optional<uint32_t> input_sharing(const c10::StorageImpl* storage) const;

  c10::SmallVector<Before, 8> inputs_;
  // The same by tensor and by storage, for calls with long lists.
  ska::flat_hash_map<const void*, uint32_t> index_;
};

// The entry for the error that the call ended in; null for one that may not recur (out of memory), or whose type is
// unknown.
CacheEntryPtr error_outcome(const CacheKey& key, const c10::Error& error);

// Creates an output that is a tensor; `tensors` are those of the call. Order: the outputs, then the rest.
at::Tensor make_output(const OutputRecipe& recipe, c10::ArrayRef<TensorArg> tensors, const ModePtr& mode);

// Whether `announce_and_apply` would do anything.
inline bool has_effects(const Outcome& outcome) {
  return !outcome.changes.empty() || !outcome.allocations.empty();
}

// Announces allocations whose order does not involve the outputs, and applies changes. Throws what the mode's observer
// throws, with nothing changed.
void announce_and_apply(const Outcome& outcome, c10::ArrayRef<TensorArg> tensors, const ModePtr& mode);

// Replaces the arguments on the stack by the results of the outcome. Throws the outcome's error.
void replay(const Call& call, const Outcome& outcome, const ModePtr& mode);

}  // namespace torchfake
