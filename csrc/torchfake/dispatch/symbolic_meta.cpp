// The symbolic rules for operators without their own: their kernels on symbols. See Note [Symbolic calls].
#include <torchfake/dispatch/hint_call.h>
#include <torchfake/dispatch/meta_call.h>
#include <torchfake/dispatch/symbolic_call.h>

#include <functional>

namespace torchfake {

namespace {

// Runs a kernel of the operator on fakes with placeholders, and takes the sizes of its results.
bool rule_of_kernel(SymbolicCall& call, const std::function<void(Call&)>& kernel) {
  const Call& asked = call.call;
  // Copied: a kernel consumes its arguments, and the call may still have to be specialised.
  torch::jit::Stack stack(asked.stack->end() - static_cast<ptrdiff_t>(asked.num_args()), asked.stack->end());
  Call copy(asked.op, asked.traits, asked.keys, &stack);
  // Outside any kernel: the calls that it makes are handled as symbolic calls.
  CallContext context;
  kernel(copy);
  size_t index = 0;
  const auto take = [&](const at::Tensor& made) {
    const size_t i = index++;
    if (!made.defined() || i >= call.outputs.size() || !call.outputs[i].defined()) {
      return;
    }
    call.set_geometry(i, made.sym_sizes(), made.sym_strides(), made.sym_storage_offset());
    if (hints_of(made.sym_strides()) != std::optional(call.outputs[i].strides().vec())) {
      // Meta kernels are more reliable for sizes than for layouts.
      call.guard_stride_order();
      call.set_output(i, made.sym_sizes());
    }
  };
  for (const c10::IValue& value : stack) {
    if (value.isTensor()) {
      take(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) {
        take(tensor);
      }
    }
  }
  return index == call.outputs.size();
}

}  // namespace

bool rule_of_meta_kernel(SymbolicCall& call, const ModePtr& mode) {
  const Call& asked = call.call;
  return asked.traits.is_builtin && asked.op.hasKernelForDispatchKey(c10::DispatchKey::Meta) &&
      rule_of_kernel(call, [&](Call& copy) { fake_impl_call(copy, mode); });
}

bool rule_of_composite(SymbolicCall& call, const ModePtr& mode) {
  const Call& asked = call.call;
  if (!asked.traits.is_builtin || asked.traits.mutates) {
    return false;  // one that fails must leave the arguments as they were
  }
  std::optional<c10::DispatchKey> key = find_composite_key(asked.op);
  if (!key && asked.op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) {
    key = c10::DispatchKey::CompositeImplicitAutograd;
  }
  return key && rule_of_kernel(call, [&](Call& copy) { composite_call(copy, *key, mode); });
}

}  // namespace torchfake
