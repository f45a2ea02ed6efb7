// Counts the calls of collectives and their bytes, for reports on the traffic between ranks.
#pragma once

#include <torchfake/core/call.h>

#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace torchfake {

struct RankGroup {
  std::string name;
  int64_t size = 0;  // 0 where the operator names no group
};

// The group that a collective is called on: c10d's operators take the object, the functional ones its name.
RankGroup group_of(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> arguments);

// The name of a collective in torch.distributed: "all_reduce" for "c10d::allreduce_" and
// "_c10d_functional::all_reduce".
std::string written_name(const OpTraits& traits);

// While alive, counts the collectives of a mode. Thread-safe.
class CollectiveCounter {
 public:
  struct Count {
    int64_t calls = 0;
    int64_t nbytes = 0;
    int64_t group_size = 0;
  };
  using Key = std::pair<std::string, std::string>;  // names of the group and the operator

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

// Reports a collective to the counters of its mode. The bytes counted are those of the largest argument.
void count_collective(const Call& call, const ModeState& mode);

}  // namespace torchfake
