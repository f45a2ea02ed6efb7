// The arguments of a symbolic call, expressed in placeholders. See Note [Placeholders].
#pragma once

#include <torchfake/core/call.h>
#include <torchfake/symbolic/placeholder_env.h>

namespace torchfake {

// The call with a placeholder for every symbol: stand-ins for fakes, and expressions of placeholders for numbers.
class PlaceholderCall {
 public:
  // Stand-ins belong to `mode`. If `placeholders` is null, symbols are kept.
  PlaceholderCall(const Call& call, const Placeholders* placeholders, ModePtr mode);

  torch::jit::Stack stack;

  // A number of the call as an expression of placeholders.
  c10::SymInt size_of(const c10::SymInt& value) const;
  c10::SymInt place_of(const c10::SymInt& value) const;

 private:
  c10::IValue argument_for(const c10::IValue& value);
  at::Tensor stand_in_for(const at::Tensor& tensor);
  c10::Storage storage_like(const c10::Storage& storage, c10::Device device);

  const Placeholders* const placeholders_;
  const ModePtr mode_;
  std::vector<std::pair<at::Tensor, at::Tensor>> stand_ins_;
  std::vector<std::pair<const c10::StorageImpl*, c10::Storage>> storages_;
};

}  // namespace torchfake
