// The table of temporary memory by operator.
#include <torchfake/memory/operator_memory.h>

#include <c10/util/flat_hash_map.h>

#include <string>

namespace torchfake::memory {

namespace {

ska::flat_hash_map<std::string, OperatorMemory>& table() {
  static auto* table = new ska::flat_hash_map<std::string, OperatorMemory>();
  return *table;
}

}  // namespace

void register_operator_memory(std::string_view name, OperatorMemory memory) {
  table()[std::string(name)] = memory;
}

const OperatorMemory& operator_memory(std::string_view name) {
  static const OperatorMemory nothing;
  const auto found = table().find(std::string(name));
  return found == table().end() ? nothing : found->second;
}

}  // namespace torchfake::memory
