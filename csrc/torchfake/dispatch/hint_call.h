// The arguments of a symbolic call at their hints or, without a hint, at examples. See Note [Symbolic calls].
#pragma once

#include <torchfake/core/call.h>
#include <torchfake/symbolic/sym_node.h>

namespace torchfake {

// Whether this is a SymInt, SymFloat or SymBool.
bool is_symbolic_number(const c10::IValue& value);
// Whether this is a list with at least one symbolic element.
bool is_symbolic_list(const c10::IValue& value);

// The value of a size at the hints, or at an example for a symbol without one (number_for); nullopt for a symbol of
// unknown kind.
std::optional<int64_t> hint_of(const c10::SymInt& value);
std::optional<std::vector<int64_t>> hints_of(c10::SymIntArrayRef values);

// The call with every symbol replaced by its hint or an example, and with stand-ins for tensors that contain symbols.
// Throws UnbackedSymbolError for a symbol without either.
class HintCall {
 public:
  enum class StandIns : uint8_t {
    kAliases,  // share the storage and the version counter of their originals
    kOwnStorages,
    kOfWrittenToo,  // like kOwnStorages, and also replace every tensor that the call writes to
  };
  HintCall(const Call& call, StandIns kind);

  torch::jit::Stack stack;

  // Whether any number is an example.
  bool has_examples() const {
    return has_examples_;
  }

  // The original of a stand-in, or the tensor itself.
  at::Tensor original_of(const at::Tensor& tensor) const;
  // The original of the stand-in that this tensor is a view of; undefined if there is none.
  at::Tensor base_of(const at::Tensor& tensor) const;

  // Throws if the geometry of an argument has changed. Applies the stand-ins' writes to the originals, unless they are
  // aliases.
  void settle() const;

 private:
  Value required(const std::optional<NumberFor>& number);
  int64_t required(const c10::SymInt& value);
  c10::IValue number_of(const c10::IValue& value, bool is_written);
  at::Tensor stand_in_for(const at::Tensor& tensor, bool is_written);
  // One per storage: which arguments share a storage is part of the call.
  c10::Storage storage_like(const c10::Storage& storage, c10::Device device);

  const Call& call_;
  const StandIns kind_;
  bool has_examples_ = false;
  std::vector<std::pair<at::Tensor, at::Tensor>> stand_ins_;
  std::vector<std::pair<const c10::StorageImpl*, c10::Storage>> storages_;
};

}  // namespace torchfake
