// A call with symbolic sizes. See Note [Symbolic calls].
#include <torchfake/dispatch/symbolic_call.h>

#include <torchfake/core/call_context.h>
#include <torchfake/dispatch/hint_call.h>
#include <torchfake/dispatch/meta_call.h>
#include <torchfake/symbolic/errors.h>

namespace torchfake {

namespace {

std::atomic<SymbolicRuleFinder> g_finder{nullptr};

}  // namespace

void set_symbolic_rules(SymbolicRuleFinder finder) {
  g_finder.store(finder, std::memory_order_release);
}

bool has_symbols(const Call& call) {
  for (const TensorArg& tensor : call.tensors()) {
    if (tensor.impl->has_symbolic_sizes_strides()) {
      return true;
    }
  }
  for (size_t i = 0; i < call.num_args(); ++i) {
    const c10::IValue& value = call.arg(i);
    if (call.traits.args[i].kind == ArgKind::kOther && (is_symbolic_number(value) || is_symbolic_list(value))) {
      return true;
    }
  }
  return false;
}

namespace {

// Every tensor among the outputs.
template <typename Visit>
void for_each_tensor(torch::jit::Stack& stack, const Visit& visit) {
  for (c10::IValue& value : stack) {
    if (value.isTensor()) {
      if (value.toTensor().defined()) {
        value = visit(value.toTensor());
      }
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) {
        list.push_back(tensor.defined() ? visit(tensor) : tensor);
      }
      value = std::move(list);
    }
  }
}

void give_back(Call& call, torch::jit::Stack& outputs) {
  torch::jit::drop(*call.stack, call.num_args());
  for (c10::IValue& output : outputs) {
    call.stack->push_back(std::move(output));
  }
}

using Answer = void (*)(Call& call, const ModePtr& mode);

void run_with(HintCall& numbers, const Call& call, const ModePtr& mode, Answer answer) {
  Call with_numbers(call.op, call.traits, call.keys, &numbers.stack);
  answer(with_numbers, mode);
}

// Whether the geometry is, at the hints, that of the stand-in's output.
bool fits(const SymbolicCall::Geometry& geometry, const at::Tensor& output) {
  return hints_of(geometry.sizes) == std::optional(output.sizes().vec()) &&
      hints_of(geometry.strides) == std::optional(output.strides().vec());
}

// Guards every symbol among the arguments to be its hint.
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

void answer_specialised(Call& call, const ModePtr& mode, Answer answer) {
  specialise(call);
  HintCall numbers(call, /*aliases=*/true);
  run_with(numbers, call, mode, answer);
  numbers.settle(/*counts_versions=*/false);
  for_each_tensor(numbers.stack, [&](const at::Tensor& tensor) { return numbers.original_of(tensor); });
  give_back(call, numbers.stack);
}

// Returns whether the rule had a say.
bool answer_by_rule(Call& call, const ModePtr& mode, SymbolicCall& symbolic, SymbolicRule rule, Answer answer) {
  std::optional<HintCall> numbers(std::in_place, call, /*aliases=*/false);
  const bool rule_is_first = numbers->has_examples();
  if (rule_is_first) {
    if (!rule(symbolic)) {
      run_with(*numbers, call, mode, answer);  // says what is wrong with the call, if something is
      return false;
    }
    numbers.emplace(call, /*aliases=*/false);  // examples that fit what the rule has learnt
  }
  run_with(*numbers, call, mode, answer);
  std::vector<at::Tensor> outputs;
  std::vector<bool> is_fresh;
  for_each_tensor(numbers->stack, [&](const at::Tensor& tensor) {
    outputs.push_back(tensor);
    is_fresh.push_back(numbers->original_of(tensor).is_same(tensor) && as_fake(tensor) != nullptr);
    return tensor;
  });
  if (!rule_is_first && !rule(symbolic)) {
    return false;
  }
  std::vector<std::optional<SymbolicCall::Geometry>> geometries(outputs.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    geometries[i] = symbolic.geometry(i, outputs[i]);
    if (is_fresh[i] && (!geometries[i] || !fits(*geometries[i], outputs[i]))) {
      return false;
    }
  }
  numbers->settle(/*counts_versions=*/true);
  size_t index = 0;
  for_each_tensor(numbers->stack, [&](const at::Tensor& tensor) {
    const size_t i = index++;
    if (is_fresh[i]) {
      const SymbolicCall::Geometry& geometry = *geometries[i];
      const bool is_number = c10::asIntArrayRefSlowOpt(geometry.sizes) && c10::asIntArrayRefSlowOpt(geometry.strides);
      if (!is_number) {
        forget_known_bytes(tensor.storage().unsafeGetStorageImpl());  // of other sizes, there would be others
        tensor.unsafeGetTensorImpl()->set_sizes_and_strides(geometry.sizes, geometry.strides);
      }
    }
    return numbers->original_of(tensor);
  });
  give_back(call, numbers->stack);
  return true;
}

}  // namespace

void symbolic_call(Call& call, const ModePtr& mode, Answer answer) {
  // A copy: the argument that holds the mode may be gone after the call.
  const ModePtr held = mode;  // NOLINT(performance-unnecessary-copy-initialization)
  const AskingOperator asking(call.traits.name);
  if (has_fake_impl(call)) {  // its author's function sees the symbols
    CallContext context;
    context.is_unkeyed = true;
    return fake_impl_call(call, held);
  }
  const SymbolicRuleFinder finder = g_finder.load(std::memory_order_acquire);
  const SymbolicRules rules = finder == nullptr ? SymbolicRules() : finder(call.traits);
  SymbolicCall symbolic(call);
  if (rules.view != nullptr) {
    std::vector<c10::IValue> outputs;
    if (rules.view(symbolic, outputs)) {
      give_back(call, outputs);
      return;
    }
  }
  if (rules.rule != nullptr && answer_by_rule(call, held, symbolic, rules.rule, answer)) {
    return;
  }
  answer_specialised(call, held, answer);
}

}  // namespace torchfake
