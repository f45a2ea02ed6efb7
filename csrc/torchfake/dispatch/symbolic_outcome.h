// Outcomes of calls with symbolic sizes: what the cache keeps of them. See Note [Symbolic outcomes].
#pragma once

#include <ATen/core/ivalue.h>

#include <torchfake/cache/outcome.h>
#include <torchfake/dispatch/symbolic_key.h>

namespace torchfake {

// Note [Symbolic outcomes]
// The outcome of a symbolic call is that of the same call at the hints, with expressions of placeholders for the sizes. It
// follows from the key, which contains the structure of every size and the hint of every symbol, and from the decisions
// that the rule asked for: the same key has an outcome for each row of answers. A hit asks for the decisions again, which
// records the guards in the environment at hand, and fills its symbols in. A miss makes an outcome and takes the same way,
// so that neither guards nor sizes depend on the state of the cache.
struct SymbolicSize {
  int64_t number = 0;
  ExprPtr expr = nullptr;  // of placeholders; null for a number
  int32_t place = -1;  // among the numbers of the key, where the size is one of these
};

struct SymbolicGeometry {
  c10::SmallVector<SymbolicSize, 5> sizes;
  c10::SmallVector<SymbolicSize, 5> strides;
  SymbolicSize offset;
  SymbolicSize nbytes;  // of the storage
  bool is_number = true;
};

struct SymbolicOutcome {
  CacheEntryPtr numbers;  // the outcome at the hints
  std::vector<std::optional<SymbolicGeometry>> outputs;  // by output; nothing for what is no new tensor
  std::vector<std::optional<SymbolicGeometry>> changes;  // by change of an input
  std::vector<Placeholders::Decision> decisions;
  c10::SmallVector<ExprPtr, 8> placeholders;
  ShapeEnvPtr env;  // keeps the expressions alive
  std::unique_ptr<SymbolicOutcome> next;

  // Whether what the rule was told holds in the environment of this call too. Then its guards are recorded there.
  bool agrees(const SymbolicKey& key) const;
  // Replaces the arguments on the stack by what the call returns.
  void replay(Call& call, const SymbolicKey& key, const ModePtr& mode) const;
};

// The outcomes of one key. Only ever grows; thread-safe. An entry of the cache holds them as the constant that its one output
// is: it has the key, its age and its place among the others as every entry has.
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

  // The one that agrees with the environment of the call, or null.
  const SymbolicOutcome* find(const SymbolicKey& key) const;
  // Drops it where there are many already.
  void add(std::unique_ptr<SymbolicOutcome> outcome);

 private:
  static constexpr size_t kMost = 16;
  std::atomic<SymbolicOutcome*> first_{nullptr};
  std::atomic<size_t> count_{0};
};

}  // namespace torchfake
