// The arguments of a call with symbolic sizes at the hints of their symbols. See Note [Symbolic calls].
#pragma once

#include <torchfake/core/call.h>
#include <torchfake/symbolic/sym_node.h>

namespace torchfake {

bool is_symbolic_number(const c10::IValue& value);
// A list among whose elements is such a number.
bool is_symbolic_list(const c10::IValue& value);

// The value of a size at the hints; nothing where it has none.
std::optional<int64_t> hint_of(const c10::SymInt& value);
std::optional<std::vector<int64_t>> hints_of(c10::SymIntArrayRef values);

// The call with every symbol at its hint, and stand-ins for what has symbols and for what the call writes to. Throws UnbackedSymbolError where one has none.
class HintCall {
 public:
  // With `aliases`, stand-ins have the storage and the version counter of what they stand for.
  HintCall(const Call& call, bool aliases);

  torch::jit::Stack stack;

  // What stands behind a stand-in, or the tensor itself.
  at::Tensor original_of(const at::Tensor& tensor) const;

  // With `aliases`: throws where an argument has another geometry than before.
  void settle() const;

 private:
  int64_t required_hint(const c10::SymInt& value) const;
  c10::IValue number_of(const c10::IValue& value, bool is_written);
  at::Tensor stand_in_for(const at::Tensor& tensor, bool is_written);
  // One for each storage: which arguments share one is part of the call.
  c10::Storage storage_like(const c10::Storage& storage, c10::Device device);

  const Call& call_;
  const bool aliases_;
  std::vector<std::pair<at::Tensor, at::Tensor>> stand_ins_;
  std::vector<std::pair<const c10::StorageImpl*, c10::Storage>> storages_;
};

}  // namespace torchfake
