// Data-dependent calls in a mode with a shape environment.
#include <torchfake/dispatch/new_symbols.h>

#include <ATen/core/LegacyTypeDispatch.h>

#include <torchfake/core/call_context.h>
#include <torchfake/values/value_tracker.h>

#include <algorithm>
#include <atomic>

namespace torchfake {

namespace {

std::atomic<NewSymbolsFinder> g_finder{nullptr};

bool values_are_known(const Call& call, const ModeState& mode) {
  const bool is_symbolic = std::any_of(call.tensors().begin(), call.tensors().end(), [](const TensorArg& tensor) {
    return tensor.impl->has_symbolic_sizes_strides();
  });
  return !is_symbolic && ValueTracker(call, mode).inputs_known();
}

}  // namespace

void set_new_symbols_rules(NewSymbolsFinder finder) {
  g_finder.store(finder, std::memory_order_release);
}

c10::SymInt NewSymbolsCall::remembered_size(int64_t low, std::optional<int64_t> high) {
  FakeTensorImpl* fake = as_fake(tensor(0));
  const std::optional<ValueMemos::Kind> kind = call.traits.memo;
  if (fake == nullptr || !kind) {
    return new_size(low, high);
  }
  if (const std::optional<c10::Scalar> before = fake->memo(*kind)) {
    return before->toSymInt();
  }
  const c10::SymInt size = new_size(low, high);
  fake->set_memo(*kind, size);
  return size;
}

c10::Scalar NewSymbolsCall::remembered_value(ValueType type) {
  FakeTensorImpl* fake = as_fake(tensor(0));
  const std::optional<ValueMemos::Kind> kind = call.traits.memo;
  if (fake != nullptr && kind) {
    if (const std::optional<c10::Scalar> before = fake->memo(*kind)) {
      return *before;
    }
  }
  const c10::Scalar value = symbols_.new_value(type);
  if (fake != nullptr && kind) {
    fake->set_memo(*kind, value);
  }
  return value;
}

namespace {

// Handles a call whose result is known without its values, so that no symbol is needed: from the bounds of a single
// value, for example. A stand-in does not count as known.
bool follows_without_values(Call& call, const ModePtr& mode) {
  const bool may_follow = call.traits.data_dependent || call.traits.memo;
  if (!may_follow || call.traits.rule == nullptr || mode->options.stand_ins != nullptr) {
    return false;
  }
  CallContext context;  // operators that the rule calls are not recorded
  context.is_unkeyed = true;
  return call.traits.rule(call, mode) == RuleResult::kAnswered;
}

}  // namespace

bool answer_with_new_symbols(Call& call, const ModePtr& mode) {
  if (!call.traits.data_dependent && !call.traits.dynamic_shape) {
    return false;
  }
  const std::shared_ptr<SymbolSource> symbols = symbol_source_of(*mode);
  if (symbols == nullptr || values_are_known(call, *mode)) {
    return false;
  }
  if (follows_without_values(call, mode)) {
    return true;
  }
  const NewSymbolsFinder finder = g_finder.load(std::memory_order_acquire);
  const NewSymbolsRule rule = finder == nullptr ? nullptr : finder(call.traits);
  if (rule == nullptr || !(call.traits.data_dependent ? symbols->gives_values() : symbols->gives_sizes())) {
    return false;
  }
  // Copied: the argument that holds the mode may be destroyed during the call.
  const ModePtr held = mode;  // NOLINT(performance-unnecessary-copy-initialization)
  std::optional<std::vector<c10::IValue>> outputs;
  {
    const AskingOperator asking(call.traits.name);
    CallContext context;  // operators that the rule calls are not recorded
    context.is_unkeyed = true;
    const FakeMode in_mode(held);
    const at::AutoDispatchBelowADInplaceOrView below;
    NewSymbolsCall with_symbols(call, held, *symbols);
    outputs = rule(with_symbols);
  }
  if (!outputs) {
    return false;
  }
  torch::jit::drop(*call.stack, call.num_args());
  for (c10::IValue& output : *outputs) {
    call.stack->push_back(std::move(output));
  }
  return true;
}

}  // namespace torchfake
