// Cached outcomes of calls with symbolic sizes. See Note [Symbolic outcomes].
#pragma once

#include <ATen/core/ivalue.h>

#include <torchfake/cache/outcome.h>
#include <torchfake/dispatch/symbolic_key.h>

namespace torchfake {

// Note [Symbolic outcomes]
// The outcome of a symbolic call is that of the same call at the hints, with expressions of placeholders as sizes. It
// is determined by the key, which contains the structure of every size and the hint of every symbol, and by the
// decisions that the rule asked for: a key has one outcome per combination of answers. A hit asks for the decisions
// again, which records the guards in the call's environment, and substitutes its symbols. A miss creates an outcome and
// takes the same path, so that neither guards nor sizes depend on the state of the cache.
struct SymbolicSize {
  int64_t number = 0;
  ExprPtr expr = nullptr;  // in placeholders; null for a number
  int32_t place = -1;  // index among the numbers of the key, if the size is one of these
};

struct SymbolicGeometry {
  c10::SmallVector<SymbolicSize, 5> sizes;
  c10::SmallVector<SymbolicSize, 5> strides;
  SymbolicSize offset;
  SymbolicSize nbytes;  // bytes of the storage
  bool is_number = true;
};

struct SymbolicOutcome {
  CacheEntryPtr numbers;  // the outcome at the hints
  std::vector<std::optional<SymbolicGeometry>> outputs;  // by output; nullopt for an output that is not a new tensor
  std::vector<SymbolicSize> integers;  // returned besides tensors, in order; empty if they are those at the hints
  std::vector<std::optional<SymbolicGeometry>> changes;  // by change of an input
  std::vector<Placeholders::Decision> decisions;
  c10::SmallVector<ExprPtr, 8> placeholders;
  ShapeEnvPtr env;  // keeps the expressions alive
  std::unique_ptr<SymbolicOutcome> next;

  // Whether the decisions behind this outcome hold in the environment of the call. If so, records their guards there.
  bool agrees(const SymbolicKey& key) const;
  // Replaces the arguments on the stack by the results of the call.
  void replay(Call& call, const SymbolicKey& key, const ModePtr& mode) const;
};

// The outcomes of one key. Only grows; thread-safe. A cache entry stores them as the constant of its single output, and
// has a key, an age and a position like any other entry.
class SymbolicOutcomes final : public torch::CustomClassHolder {
 public:
  SymbolicOutcomes() = default;
  ~SymbolicOutcomes() override;
  SymbolicOutcomes(const SymbolicOutcomes&) = delete;
  SymbolicOutcomes& operator=(const SymbolicOutcomes&) = delete;
  SymbolicOutcomes(SymbolicOutcomes&&) = delete;
  SymbolicOutcomes& operator=(SymbolicOutcomes&&) = delete;

  static c10::intrusive_ptr<SymbolicOutcomes> of(const CacheEntry& entry);
  static CacheEntryPtr entry_for(const CacheKey& key, c10::intrusive_ptr<SymbolicOutcomes> outcomes);

  // The outcome that agrees with the environment of the call, or null.
  const SymbolicOutcome* find(const SymbolicKey& key) const;
  // Discards it if there are too many already.
  void add(std::unique_ptr<SymbolicOutcome> outcome);

 private:
  static constexpr size_t kMost = 16;
  std::atomic<SymbolicOutcome*> first_{nullptr};
  std::atomic<size_t> count_{0};
};

}  // namespace torchfake
