// Specialisation: a symbolic call whose symbols are fixed at their current values. See Note [Symbolic calls].
#include <torchfake/dispatch/specialised_call.h>

#include <torchfake/dispatch/hint_call.h>

namespace torchfake {

void specialise(const Call& call) {
  const auto guard = [](const c10::SymInt& value) { value.guard_int(__FILE__, __LINE__); };
  for (const TensorArg& tensor : call.tensors()) {
    if (tensor.impl->has_symbolic_sizes_strides()) {
      for (const c10::SymInt& size : tensor.impl->sym_sizes()) {
        guard(size);
      }
      for (const c10::SymInt& stride : tensor.impl->sym_strides()) {
        guard(stride);
      }
      guard(tensor.impl->sym_storage_offset());
    }
  }
  for (size_t i = 0; i < call.num_args(); ++i) {
    const c10::IValue& value = call.arg(i);
    if (value.isSymInt()) {
      guard(value.toSymInt());
    } else if (value.isSymFloat()) {
      value.toSymFloat().guard_float(__FILE__, __LINE__);
    } else if (value.isSymBool()) {
      value.toSymBool().guard_bool(__FILE__, __LINE__);
    } else if (is_symbolic_list(value)) {
      for (const c10::IValue& element : value.toListRef()) {
        guard(element.toSymInt());
      }
    }
  }
}

void answer_specialised(Call& call, const ModePtr& mode, void (*answer)(Call& call, const ModePtr& mode)) {
  specialise(call);
  HintCall numbers(call, HintCall::StandIns::kAliases);
  Call with_numbers(call.op, call.traits, call.keys, &numbers.stack);
  answer(with_numbers, mode);
  numbers.settle();
  give_back(call, numbers.stack, [&](const at::Tensor& tensor) { return numbers.original_of(tensor); });
}

}  // namespace torchfake
