// Names of the parts of a program that work is done for: paths of modules. One numbering for all that record.
#pragma once

#include <c10/util/flat_hash_map.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace torchfake::memory {

// The number of a path, the same each time; 0 is "", no part. Thread-safe.
uint32_t scope_number(const std::string& path);

// All paths that have a number, by it.
std::vector<std::string> scope_names();
uint32_t scope_count();

// Which scope made a node of autograd's graph, so that its backward is the same scope's. Nodes have sequence numbers, which
// count up on each thread: a scope has made those from its first number to the next scope's. Not thread-safe.
class ScopesOfNodes {
 public:
  // The call at hand is one of `scope`, whose node has just been made where there is one.
  void note(uint32_t scope);
  // The scope that made the node which runs on this thread; 0 where none runs, or nobody said.
  uint32_t of_current_node() const;

 private:
  // By thread: the first number of a scope, ascending.
  ska::flat_hash_map<uint64_t, std::vector<std::pair<uint64_t, uint32_t>>> ranges_;
};

}  // namespace torchfake::memory
