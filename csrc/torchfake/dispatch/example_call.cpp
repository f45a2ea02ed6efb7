// Calls with unbacked symbols or with PyTorch's own nodes: handled on the symbols themselves, and not cached.
#include <torchfake/dispatch/example_call.h>

#include <torchfake/core/symbolic_bytes.h>
#include <torchfake/dispatch/hint_call.h>
#include <torchfake/dispatch/specialised_call.h>
#include <torchfake/dispatch/symbolic_call.h>

#include <algorithm>

namespace torchfake {

namespace {

using Answer = void (*)(Call& call, const ModePtr& mode);
using Geometry = SymbolicCall::Geometry;

bool is_hint_of_ours(c10::SymNodeImpl* node) {
  const SymExprNode* own = as_expr_node(node);
  return own == nullptr ? node->constant_int().has_value() : own->hint().has_value();
}

bool is_hint_of_ours(const c10::SymInt& value) {
  return !value.is_heap_allocated() || is_hint_of_ours(value.toSymNodeImplUnowned());
}

bool is_hint_of_ours(const c10::IValue& value) {
  if (value.isSymInt()) {
    return is_hint_of_ours(value.toSymInt());
  }
  if (value.isSymFloat()) {
    return is_hint_of_ours(value.toSymFloat().toSymNodeImpl().get());
  }
  if (value.isSymBool()) {
    return is_hint_of_ours(value.toSymBool().toSymNodeImpl().get());
  }
  if (is_symbolic_list(value)) {
    const c10::ArrayRef<c10::IValue> list = value.toListRef();
    return std::all_of(list.begin(), list.end(), [](const c10::IValue& element) { return is_hint_of_ours(element); });
  }
  return true;
}

bool is_hint_of_ours(const c10::TensorImpl& tensor) {
  const auto all_are = [](c10::SymIntArrayRef values) {
    return std::all_of(values.begin(), values.end(), [](const c10::SymInt& value) { return is_hint_of_ours(value); });
  };
  const c10::StorageImpl* storage = storage_of(tensor);
  return (!tensor.has_symbolic_sizes_strides() ||
          (all_are(tensor.sym_sizes()) && all_are(tensor.sym_strides()) &&
           is_hint_of_ours(tensor.sym_storage_offset()))) &&
      (storage == nullptr || is_hint_of_ours(storage->sym_nbytes()));
}

bool is_symbolic(const Geometry& geometry) {
  return !c10::asIntArrayRefSlowOpt(geometry.sizes) || !c10::asIntArrayRefSlowOpt(geometry.strides) ||
      geometry.offset.is_heap_allocated();
}

at::Tensor view_of(const at::Tensor& base, const Geometry& geometry) {
  const FakeTensorImpl& fake = *as_fake(base);
  auto view = c10::make_intrusive<FakeTensorImpl>(
      c10::Storage(base.storage()), fake.key_set(), base.dtype(), fake.claimed_device(), fake.mode());
  // Becomes a plain geometry if all of them are numbers.
  view->set_sizes_and_strides(geometry.sizes, geometry.strides, geometry.offset);
  return at::Tensor(std::move(view));
}

// Returns whether the rule applied.
bool answer_by_view(Call& call, SymbolicRule rule) {
  SymbolicCall symbolic(call);
  const at::Tensor base = symbolic.tensor(0);
  if (as_fake(base) == nullptr || !rule(symbolic)) {
    return false;
  }
  const auto none = [](const at::Tensor& tensor) { return tensor; };
  if (call.traits.mutates) {
    const std::optional<Geometry>& geometry = symbolic.geometries.at(0);
    if (!geometry.has_value() || !is_symbolic(*geometry)) {
      return false;  // a tensor that was symbolic cannot become plain
    }
    c10::TensorImpl* impl = base.unsafeGetTensorImpl();
    impl->set_sizes_and_strides(geometry->sizes, geometry->strides, geometry->offset);
    impl->bump_version();
    give_back(call, {c10::IValue(base)}, none);
    return true;
  }
  c10::List<at::Tensor> views;
  for (const std::optional<Geometry>& geometry : symbolic.geometries) {
    if (!geometry.has_value()) {
      return false;
    }
    views.push_back(view_of(base, *geometry));
  }
  const bool is_list = call.op.schema().returns()[0].type()->kind() == c10::TypeKind::ListType;
  give_back(call, {is_list ? c10::IValue(views) : c10::IValue(views.get(0))}, none);
  return true;
}

void run_with(HintCall& numbers, const Call& call, const ModePtr& mode, Answer answer) {
  Call with_numbers(call.op, call.traits, call.keys, &numbers.stack);
  answer(with_numbers, mode);
}

// Returns whether the rule applied.
bool answer_by_rule(Call& call, const ModePtr& mode, SymbolicRule rule, Answer answer) {
  std::optional<HintCall> numbers(std::in_place, call, HintCall::StandIns::kOwnStorages);
  if (numbers->has_examples()) {
    SymbolicCall learning(call);
    if (!rule(learning)) {
      run_with(*numbers, call, mode, answer);  // throws if the call itself is invalid
      return false;
    }
    numbers.emplace(call, HintCall::StandIns::kOwnStorages);  // examples consistent with what the rule recorded
  }
  run_with(*numbers, call, mode, answer);
  std::vector<at::Tensor> outputs;
  std::vector<bool> is_fresh;
  for_each_tensor(numbers->stack, [&](const at::Tensor& tensor) {
    outputs.push_back(tensor);
    is_fresh.push_back(tensor.defined() && numbers->original_of(tensor).is_same(tensor) && as_fake(tensor) != nullptr);
  });
  SymbolicCall symbolic(call, outputs);
  if (!rule(symbolic)) {
    return false;
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (is_fresh[i] && !symbolic.fits(i)) {
      return false;
    }
  }
  numbers->settle();
  for (size_t i = 0; i < outputs.size(); ++i) {
    const std::optional<Geometry>& geometry = symbolic.geometries[i];
    if (is_fresh[i] && geometry.has_value() && is_symbolic(*geometry)) {
      forget_known_bytes(outputs[i].storage().unsafeGetStorageImpl());  // known values would differ for other sizes
      outputs[i].unsafeGetTensorImpl()->set_sizes_and_strides(geometry->sizes, geometry->strides, geometry->offset);
    }
  }
  give_back(call, numbers->stack, [&](const at::Tensor& tensor) { return numbers->original_of(tensor); });
  return true;
}

}  // namespace

bool has_hints_of_ours(const Call& call) {
  for (const TensorArg& tensor : call.tensors()) {
    if (!is_hint_of_ours(*tensor.impl)) {
      return false;
    }
  }
  for (size_t i = 0; i < call.num_args(); ++i) {
    if (call.traits.args[i].kind == ArgKind::kOther && !is_hint_of_ours(call.arg(i))) {
      return false;
    }
  }
  return true;
}

void example_call(Call& call, const ModePtr& mode, Answer answer) {
  // An out= argument with plain sizes would be resized without a guard.
  const SymbolicRules rules = call.traits.has_out ? SymbolicRules() : symbolic_rules_of(call.traits);
  if (rules.use == SymbolicRules::Use::kView && answer_by_view(call, rules.rule)) {
    return;
  }
  if (rules.use == SymbolicRules::Use::kFresh && rules.rule != nullptr &&
      answer_by_rule(call, mode, rules.rule, answer)) {
    return;
  }
  answer_specialised(call, mode, answer);
}

}  // namespace torchfake
