// Specialisation: a symbolic call whose symbols are fixed at their current values. See Note [Symbolic calls].
#pragma once

#include <torchfake/core/call.h>
#include <torchfake/core/each_tensor.h>

namespace torchfake {

// Replaces the arguments on the stack by these values, with `replaced` applied to every defined tensor.
template <typename Replace>
void give_back(Call& call, c10::ArrayRef<c10::IValue> values, const Replace& replaced) {
  torch::jit::drop(*call.stack, call.num_args());
  for (const c10::IValue& value : values) {
    if (value.isTensor() && value.toTensor().defined()) {
      call.stack->emplace_back(replaced(value.toTensor()));
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) {
        list.push_back(tensor.defined() ? replaced(tensor) : tensor);
      }
      call.stack->emplace_back(std::move(list));
    } else {
      call.stack->push_back(value);
    }
  }
}

// Guards that every symbolic number among the arguments equals its current value. Throws UnbackedSymbolError for a
// symbol without a hint.
void specialise(const Call& call);

// Specialises, and runs the call with numbers. For calls without a rule, and for calls whose outcome cannot be cached
// because they replace a storage or return views that share one.
void answer_specialised(Call& call, const ModePtr& mode, void (*answer)(Call& call, const ModePtr& mode));

}  // namespace torchfake
