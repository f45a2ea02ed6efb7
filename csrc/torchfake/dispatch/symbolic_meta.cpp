// The symbolic rules for operators without their own: their kernels on symbols. See Note [Symbolic calls].
#include <torchfake/dispatch/hint_call.h>
#include <torchfake/dispatch/meta_call.h>
#include <torchfake/dispatch/specialised_call.h>
#include <torchfake/dispatch/symbolic_call.h>

#include <functional>

namespace torchfake {

namespace {

torch::jit::Stack results_of(const Call& call, const std::function<void(Call&)>& kernel) {
  // Copied: a kernel consumes its arguments, and the call may still have to be specialised.
  torch::jit::Stack stack(call.stack->end() - static_cast<ptrdiff_t>(call.num_args()), call.stack->end());
  Call copy(call.op, call.traits, call.keys, &stack);
  // Outside any kernel: the calls that it makes are handled as symbolic calls.
  CallContext context;
  context.passes_python = true;  // the kernel may be Python's
  kernel(copy);
  return stack;
}

}  // namespace

std::optional<torch::jit::Stack> results_of_meta_kernel(const Call& call, const ModePtr& mode) {
  if (!call.traits.is_builtin || !call.op.hasKernelForDispatchKey(c10::DispatchKey::Meta)) {
    return std::nullopt;
  }
  return results_of(call, [&](Call& copy) { fake_impl_call(copy, mode); });
}

std::optional<torch::jit::Stack> results_of_composite(const Call& call, const ModePtr& mode) {
  if (!call.traits.is_builtin || call.traits.mutates) {
    return std::nullopt;  // a kernel that fails must leave the arguments unchanged
  }
  std::optional<c10::DispatchKey> key = find_composite_key(call.op);
  if (!key && call.op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) {
    key = c10::DispatchKey::CompositeImplicitAutograd;
  }
  if (!key) {
    return std::nullopt;
  }
  return results_of(call, [&](Call& copy) { composite_call(copy, *key, mode); });
}

bool take_sizes(SymbolicCall& call, const std::optional<torch::jit::Stack>& results) {
  if (!results) {
    return false;
  }
  size_t index = 0;
  for_each_tensor(*results, [&](const at::Tensor& made) {
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
  });
  call.numbers.clear();
  for (const c10::IValue& value : *results) {
    if (value.isInt() || value.isSymInt()) {
      call.numbers.push_back(value.toSymInt());
    }
  }
  return index == call.outputs.size();
}

bool rule_of_meta_kernel(SymbolicCall& call, const ModePtr& mode) {
  return take_sizes(call, results_of_meta_kernel(call.call, mode));
}

bool rule_of_composite(SymbolicCall& call, const ModePtr& mode) {
  return take_sizes(call, results_of_composite(call.call, mode));
}

}  // namespace torchfake
