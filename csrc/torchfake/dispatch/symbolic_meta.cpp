// The symbolic rule for operators without their own: the kernel on the Meta key. See Note [Symbolic calls].
#include <torchfake/dispatch/hint_call.h>
#include <torchfake/dispatch/meta_call.h>
#include <torchfake/dispatch/symbolic_call.h>

namespace torchfake {

bool rule_of_meta_kernel(SymbolicCall& call, const ModePtr& mode) {
  const Call& asked = call.call;
  if (!asked.traits.is_builtin || !asked.op.hasKernelForDispatchKey(c10::DispatchKey::Meta)) {
    return false;
  }
  // Copied: a kernel consumes its arguments, and the call may still have to be specialised.
  torch::jit::Stack stack(asked.stack->end() - static_cast<ptrdiff_t>(asked.num_args()), asked.stack->end());
  Call copy(asked.op, asked.traits, asked.keys, &stack);
  // Outside any kernel: the calls that it makes are handled as symbolic calls.
  CallContext context;
  fake_impl_call(copy, mode);
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

}  // namespace torchfake
