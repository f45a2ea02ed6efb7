// The history of a mode's allocations.
#include <torchfake/memory/history.h>

#include <chrono>
#include <utility>

namespace torchfake::memory {

namespace {

using Action = TraceEntry::Action;
using Stacks = HistoryOptions::Stacks;

StackPtr& stack_of_thread() {
  thread_local StackPtr stack;
  return stack;
}

int64_t now_us() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(now).count();
}

// Whether the stack of such an event is kept.
bool keeps_stack(Action action, Stacks stacks) {
  switch (action) {
    case Action::kAlloc:
    case Action::kSegmentAlloc:
    case Action::kSegmentMap:
    case Action::kOutOfMemory:
      return stacks >= Stacks::kAlloc;
    default:
      return stacks == Stacks::kAll;
  }
}

StackPtr found_in(const ska::flat_hash_map<uint64_t, StackPtr>& stacks, uint64_t address) {
  const auto found = stacks.find(address);
  return found == stacks.end() ? nullptr : found->second;
}

}  // namespace

void History::record(const TraceEntry& entry) {
  const StackPtr& stack = stack_of_thread();
  if (options_.stacks != Stacks::kNone) {
    if (entry.action == Action::kAlloc) {
      blocks_[entry.address] = stack;
    } else if (entry.action == Action::kFreeCompleted) {
      blocks_.erase(entry.address);
    } else if (entry.action == Action::kSegmentAlloc || entry.action == Action::kSegmentMap) {
      segments_[entry.address] = stack;
    } else if (entry.action == Action::kSegmentFree || entry.action == Action::kSegmentUnmap) {
      segments_.erase(entry.address);
    }
  }
  if (!options_.keeps_events || options_.max_events == 0 || options_.skipped.count(to_string(entry.action)) > 0) {
    return;
  }
  if (events_.size() >= options_.max_events) {
    events_.pop_front();
  }
  events_.push_back({entry, now_us(), keeps_stack(entry.action, options_.stacks) ? stack : nullptr});
}

StackPtr History::stack_of_block(uint64_t address) const {
  return found_in(blocks_, address);
}

StackPtr History::stack_of_segment(uint64_t address) const {
  return found_in(segments_, address);
}

GatheredStack::GatheredStack(const std::function<StackPtr()>& gather)
    : outer_(std::exchange(stack_of_thread(), gather ? gather() : nullptr)) {}

GatheredStack::~GatheredStack() {
  stack_of_thread() = std::move(outer_);
}

}  // namespace torchfake::memory
