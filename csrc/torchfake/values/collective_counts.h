// How often collectives are called, and on how many bytes: what a report says of the traffic between ranks.
#pragma once

#include <torchfake/core/call.h>

#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace torchfake {

// Counts the collectives of a mode while it lives. Thread-safe.
class CollectiveCounter {
 public:
  struct Count {
    int64_t calls = 0;
    int64_t nbytes = 0;
    int64_t group_size = 0;
  };
  using Key = std::pair<std::string, std::string>;  // the group's name, the operator's

  // Throws c10::ValueError if `mode` is null.
  explicit CollectiveCounter(ModePtr mode);
  ~CollectiveCounter();
  CollectiveCounter(const CollectiveCounter&) = delete;
  CollectiveCounter& operator=(const CollectiveCounter&) = delete;
  CollectiveCounter(CollectiveCounter&&) = delete;
  CollectiveCounter& operator=(CollectiveCounter&&) = delete;

  std::map<Key, Count> counts() const;

 private:
  friend void count_collective(const Call& call, const ModeState& mode);
  void add(const Call& call);

  const ModePtr mode_;
  mutable std::mutex mutex_;
  std::map<Key, Count> counts_;
};

// Tells the counters of a mode of a collective. What it counts as bytes is the larger of what this rank gives and gets.
void count_collective(const Call& call, const ModeState& mode);

}  // namespace torchfake
