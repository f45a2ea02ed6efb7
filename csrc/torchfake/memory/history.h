// The history of a mode's allocations, as requested by torch.cuda.memory._record_memory_history.
#pragma once

#include <c10/util/flat_hash_map.h>

#include <torchfake/memory/caching_allocator.h>

#include <deque>
#include <limits>
#include <memory>
#include <unordered_set>

namespace c10 {
struct GatheredContext;
}

namespace torchfake::memory {

using StackPtr = std::shared_ptr<c10::GatheredContext>;

struct HistoryOptions {
  enum class Stacks : uint8_t { kNone, kState, kAlloc, kAll };  // for live memory; also for allocations; also for frees

  bool keeps_events = true;  // otherwise only where live memory was allocated
  Stacks stacks = Stacks::kAll;
  size_t max_events = std::numeric_limits<size_t>::max();
  std::unordered_set<std::string> skipped;  // names of actions
  std::function<StackPtr()> gather;  // gathers the stack of this thread; called without any lock of the model
};

struct HistoryEvent {
  TraceEntry entry;
  int64_t time_us = 0;
  StackPtr stack;
};

// The history of one device. Not thread-safe: covered by its allocator's lock.
class History {
 public:
  explicit History(HistoryOptions options) : options_(std::move(options)) {}

  void record(const TraceEntry& entry);
  const std::deque<HistoryEvent>& events() const {
    return events_;
  }
  const HistoryOptions& options() const {
    return options_;
  }
  // The stack at which the block or segment at an address was allocated, or null.
  StackPtr stack_of_block(uint64_t address) const;
  StackPtr stack_of_segment(uint64_t address) const;

 private:
  const HistoryOptions options_;
  std::deque<HistoryEvent> events_;
  ska::flat_hash_map<uint64_t, StackPtr> blocks_;
  ska::flat_hash_map<uint64_t, StackPtr> segments_;
};

// While alive, the stack it gathered is attached to what this thread allocates and frees. Must be created before the
// model is locked: gathering a stack may wait for Python, which may wait for the model.
class GatheredStack {
 public:
  explicit GatheredStack(const std::function<StackPtr()>& gather);
  ~GatheredStack();
  GatheredStack(const GatheredStack&) = delete;
  GatheredStack& operator=(const GatheredStack&) = delete;
  GatheredStack(GatheredStack&&) = delete;
  GatheredStack& operator=(GatheredStack&&) = delete;

 private:
  StackPtr outer_;
};

}  // namespace torchfake::memory
