// The arguments of a call with symbolic sizes at the hints of their symbols, or at examples where they have none. See Note [Symbolic calls].
#pragma once

#include <torchfake/core/call.h>
#include <torchfake/symbolic/sym_node.h>

namespace torchfake {

bool is_symbolic_number(const c10::IValue& value);
// A list among whose elements is such a number.
bool is_symbolic_list(const c10::IValue& value);

// What a size stands at: the value at the hints, or at an example for what has none (number_for). Nothing for a symbol of a
// kind that nobody knows.
std::optional<int64_t> hint_of(const c10::SymInt& value);
std::optional<std::vector<int64_t>> hints_of(c10::SymIntArrayRef values);

// The call with every symbol at its hint, or at an example, and stand-ins for what has symbols. Throws UnbackedSymbolError where there is neither.
class HintCall {
 public:
  enum class StandIns : uint8_t {
    kAliases,  // have the storage and the version counter of what they stand for
    kOwnStorages,
    kOfWrittenToo,  // the same, and stand for everything that the call writes to
  };
  HintCall(const Call& call, StandIns kind);

  torch::jit::Stack stack;

  // Whether some number is an example.
  bool has_examples() const {
    return has_examples_;
  }

  // What stands behind a stand-in, or the tensor itself.
  at::Tensor original_of(const at::Tensor& tensor) const;

  // Throws where an argument has another geometry than before. Unless stand-ins are aliases, the originals are written to
  // as the stand-ins were.
  void settle() const;

 private:
  Value required(const std::optional<NumberFor>& number);
  int64_t required(const c10::SymInt& value);
  c10::IValue number_of(const c10::IValue& value, bool is_written);
  at::Tensor stand_in_for(const at::Tensor& tensor, bool is_written);
  // One for each storage: which arguments share one is part of the call.
  c10::Storage storage_like(const c10::Storage& storage, c10::Device device);

  const Call& call_;
  const StandIns kind_;
  bool has_examples_ = false;
  std::vector<std::pair<at::Tensor, at::Tensor>> stand_ins_;
  std::vector<std::pair<const c10::StorageImpl*, c10::Storage>> storages_;
};

}  // namespace torchfake
