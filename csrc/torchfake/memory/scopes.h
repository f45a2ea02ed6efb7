// Numbers for the paths of modules, by which memory and work are attributed. One numbering for all recorders.
#pragma once

#include <c10/util/flat_hash_map.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace torchfake::memory {

// The number of a path, the same on every call; 0 for "", outside of any module. Thread-safe.
uint32_t scope_number(const std::string& path);

// The paths, indexed by their numbers.
std::vector<std::string> scope_names();
uint32_t scope_count();

// Maps the nodes of autograd's graph to the scopes that created them, so that their backward is attributed to the same
// scope. Each thread numbers its nodes consecutively, so a scope is stored with the first number it created. Not
// thread-safe.
class ScopesOfNodes {
 public:
  // Attributes the current call, and the node that it has just created, if any, to `scope`.
  void note(uint32_t scope);
  // The scope that created the node running on this thread; 0 if no node is running or its scope is unknown.
  uint32_t of_current_node() const;

 private:
  // For each thread: scopes and the first numbers of their nodes, in ascending order.
  ska::flat_hash_map<uint64_t, std::vector<std::pair<uint64_t, uint32_t>>> ranges_;
};

}  // namespace torchfake::memory
