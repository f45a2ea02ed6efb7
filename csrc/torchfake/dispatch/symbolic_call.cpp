// A call with symbolic sizes. See Note [Symbolic calls].
#include <torchfake/dispatch/symbolic_call.h>

#include <torchfake/core/call_context.h>
#include <torchfake/symbolic/errors.h>

#include <algorithm>
#include <numeric>

namespace torchfake {

namespace {

std::atomic<SymbolicRuleFinder> g_finder{nullptr};

bool is_symbolic_number(const c10::IValue& value) {
  return value.isSymInt() || value.isSymFloat() || value.isSymBool();
}

bool is_symbolic_list(const c10::IValue& value) {
  if (!value.isList() || value.isTensorList() || value.isIntList() || value.isDoubleList()) {
    return false;
  }
  const c10::ArrayRef<c10::IValue> elements = value.toListRef();
  return std::any_of(elements.begin(), elements.end(), is_symbolic_number);
}

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

int SymbolicCall::arg_named(std::string_view name) const {
  const std::vector<c10::Argument>& arguments = call.op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() == name) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

c10::SymInt SymbolicCall::integer(size_t index) const {
  return arg(index).toSymInt();
}

SymbolicCall::Sizes SymbolicCall::integers(size_t index) const {
  Sizes result;
  for (const c10::IValue& element : arg(index).toListRef()) {
    result.push_back(element.toSymInt());
  }
  return result;
}

namespace {

// The value of a size at the hints; nothing where it has none.
std::optional<int64_t> hint_of(const c10::SymInt& value) {
  if (const std::optional<int64_t> number = value.maybe_as_int()) {
    return number;
  }
  SymExprNode* node = as_expr_node(value.toSymNodeImplUnowned());
  const std::optional<Value> hint = node == nullptr ? std::nullopt : node->hint();
  return hint ? std::optional(hint->integer) : std::nullopt;
}

// The dimensions, those that lie closest in memory first.
c10::SmallVector<int64_t, 5> by_stride(c10::ArrayRef<int64_t> sizes, c10::ArrayRef<int64_t> strides) {
  c10::SmallVector<int64_t, 5> order;
  for (int64_t dim = static_cast<int64_t>(strides.size()) - 1; dim >= 0; --dim) {
    order.push_back(dim);
  }
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return std::make_pair(strides[a], sizes[a]) < std::make_pair(strides[b], sizes[b]);
  });
  return order;
}

std::optional<std::vector<int64_t>> hints_of(c10::SymIntArrayRef values) {
  std::vector<int64_t> result;
  for (const c10::SymInt& value : values) {
    const std::optional<int64_t> hint = hint_of(value);
    if (!hint) {
      return std::nullopt;
    }
    result.push_back(*hint);
  }
  return result;
}

}  // namespace

namespace {

// A number where the facts make it one.
c10::SymInt plain(const c10::SymInt& value) {
  const std::optional<int64_t> number = value.maybe_as_int();
  return number ? c10::SymInt(*number) : value;
}

c10::SymDimVector plain(c10::SymIntArrayRef values) {
  c10::SymDimVector result;
  for (const c10::SymInt& value : values) {
    result.push_back(plain(value));
  }
  return result;
}

}  // namespace

void SymbolicCall::set_output(size_t index, c10::SymIntArrayRef sizes) {
  const at::Tensor& output = outputs.at(index);
  if (static_cast<size_t>(output.dim()) != sizes.size()) {
    return;
  }
  Geometry geometry;
  geometry.sizes = plain(sizes);
  geometry.strides.resize(sizes.size());
  c10::SymInt stride = 1;
  for (const int64_t dim : by_stride(output.sizes(), output.strides())) {
    geometry.strides[dim] = plain(stride);
    stride = stride * sizes[dim];
  }
  geometries.resize(outputs.size());
  geometries[index] = std::move(geometry);
}

void SymbolicCall::set_outputs(c10::SymIntArrayRef sizes) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    set_output(i, sizes);
  }
}

void SymbolicCall::guard_stride_order() const {
  for (const TensorArg& tensor : call.tensors()) {
    if (!tensor.impl->has_symbolic_sizes_strides()) {
      continue;
    }
    const c10::SymIntArrayRef strides = tensor.impl->sym_strides();
    const std::optional<std::vector<int64_t>> sizes = hints_of(tensor.impl->sym_sizes());
    const std::optional<std::vector<int64_t>> hints = hints_of(strides);
    if (!sizes || !hints) {
      continue;
    }
    const c10::SmallVector<int64_t, 5> order = by_stride(*sizes, *hints);
    for (size_t i = 1; i < order.size(); ++i) {
      // Zero, of an expanded dimension, and one are numbers; the order of the rest is asked for.
      strides[order[i - 1]].sym_le(strides[order[i]]).guard_bool(__FILE__, __LINE__);
    }
  }
}

namespace {

// The call with every symbol at its hint.
class Numbers {
 public:
  // With `aliases`, stand-ins have the storage and the version counter of what they stand for.
  Numbers(const Call& call, bool aliases) : call_(call), aliases_(aliases) {
    for (size_t i = 0; i < call.num_args(); ++i) {
      stack.push_back(number_of(call.arg(i)));
    }
  }

  torch::jit::Stack stack;

  // What stands behind a stand-in, or the tensor itself.
  at::Tensor original_of(const at::Tensor& tensor) const {
    for (const auto& [stand_in, original] : stand_ins_) {
      if (stand_in.is_same(tensor)) {
        return original;
      }
    }
    return tensor;
  }

  // Throws where an argument has another geometry than before. Counts up versions as the call did.
  void settle(bool counts_versions) const {
    for (const auto& [stand_in, original] : stand_ins_) {
      const bool is_same = hints_of(original.sym_sizes()) == std::optional(stand_in.sizes().vec()) &&
          hints_of(original.sym_strides()) == std::optional(stand_in.strides().vec());
      if (!is_same) {
        raise_dynamic_shapes(call_.op_name(), "the call changes the sizes of a tensor with symbolic sizes.");
      }
      if (call_.traits.mutates && !aliases_) {
        forget_known_bytes(original.storage().unsafeGetStorageImpl());
      }
      const c10::VariableVersion& version = stand_in.unsafeGetTensorImpl()->version_counter();
      for (uint32_t i = 0; counts_versions && version.enabled() && i < version.current_version(); ++i) {
        original.unsafeGetTensorImpl()->bump_version();
      }
    }
  }

 private:
  int64_t required_hint(const c10::SymInt& value) const {
    const std::optional<int64_t> hint = hint_of(value);
    if (!hint) {
      raise_unbacked_symbol(
          call_.op_name(),
          c10::str("the size ", value, " is known to data alone, and this operator has no rule for such sizes."));
    }
    return *hint;
  }

  c10::IValue number_of(const c10::IValue& value) {
    if (value.isTensor()) {
      return value.toTensor().defined() ? c10::IValue(stand_in_for(value.toTensor())) : value;
    }
    if (value.isSymInt()) {
      return required_hint(value.toSymInt());
    }
    if (value.isSymFloat() || value.isSymBool()) {
      SymExprNode* node =
          as_expr_node(value.isSymFloat() ? value.toSymFloat().toSymNodeImpl() : value.toSymBool().toSymNodeImpl());
      const std::optional<Value> hint = node == nullptr ? std::nullopt : node->hint();
      if (!hint) {
        raise_unbacked_symbol(call_.op_name(), "a number among the arguments is known to data alone.");
      }
      return value.isSymFloat() ? c10::IValue(hint->real) : c10::IValue(hint->integer != 0);
    }
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) {
        list.push_back(tensor.defined() ? stand_in_for(tensor) : tensor);
      }
      return list;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
        list.push_back(tensor && tensor->defined() ? std::optional(stand_in_for(*tensor)) : tensor);
      }
      return list;
    }
    if (is_symbolic_list(value)) {
      c10::List<int64_t> list;
      for (const c10::IValue& element : value.toListRef()) {
        list.push_back(number_of(element).toInt());
      }
      return list;
    }
    return value;
  }

  at::Tensor stand_in_for(const at::Tensor& tensor) {
    const FakeTensorImpl* fake = as_fake(tensor);
    if (!tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides() || fake == nullptr) {
      return tensor;
    }
    for (const auto& [stand_in, original] : stand_ins_) {
      if (original.is_same(tensor)) {
        return stand_in;
      }
    }
    std::vector<int64_t> sizes;
    std::vector<int64_t> strides;
    for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
      sizes.push_back(required_hint(tensor.sym_size(dim)));
      strides.push_back(required_hint(tensor.sym_stride(dim)));
    }
    const int64_t offset = required_hint(tensor.sym_storage_offset());
    at::Tensor stand_in = make_fake(
        aliases_ ? c10::Storage(tensor.storage()) : storage_like(tensor.storage(), fake->claimed_device()),
        fake->key_set(),
        tensor.dtype(),
        GeometryRef{sizes, strides, offset},
        fake->claimed_device(),
        fake->mode());
    if (aliases_ && !tensor.is_inference()) {
      stand_in.unsafeGetTensorImpl()->set_version_counter(tensor.unsafeGetTensorImpl()->version_counter());
    }
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
      stand_in.unsafeGetTensorImpl()->set_wrapped_number(true);
    }
    stand_ins_.emplace_back(stand_in, tensor);
    return stand_in;
  }

  // One for each storage: which arguments share one is part of the call.
  c10::Storage storage_like(const c10::Storage& storage, c10::Device device) {
    for (const auto& [original, copy] : storages_) {
      if (original == storage.unsafeGetStorageImpl()) {
        return copy;
      }
    }
    storages_.emplace_back(storage.unsafeGetStorageImpl(), new_fake_storage(storage.nbytes(), device, nullptr));
    return storages_.back().second;
  }

  const Call& call_;
  const bool aliases_;
  std::vector<std::pair<at::Tensor, at::Tensor>> stand_ins_;
  std::vector<std::pair<const c10::StorageImpl*, c10::Storage>> storages_;
};

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

void run_with(Numbers& numbers, const Call& call, const ModePtr& mode, Answer answer) {
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
  Numbers numbers(call, /*aliases=*/true);
  run_with(numbers, call, mode, answer);
  numbers.settle(/*counts_versions=*/false);
  for_each_tensor(numbers.stack, [&](const at::Tensor& tensor) { return numbers.original_of(tensor); });
  give_back(call, numbers.stack);
}

// Returns whether the rule had a say.
bool answer_by_rule(Call& call, const ModePtr& mode, SymbolicCall& symbolic, SymbolicRule rule, Answer answer) {
  Numbers numbers(call, /*aliases=*/false);
  run_with(numbers, call, mode, answer);
  std::vector<bool> is_fresh;
  for_each_tensor(numbers.stack, [&](const at::Tensor& tensor) {
    symbolic.outputs.push_back(tensor);
    is_fresh.push_back(numbers.original_of(tensor).is_same(tensor) && as_fake(tensor) != nullptr);
    return tensor;
  });
  if (!rule(symbolic)) {
    return false;
  }
  symbolic.geometries.resize(symbolic.outputs.size());
  for (size_t i = 0; i < symbolic.outputs.size(); ++i) {
    const std::optional<SymbolicCall::Geometry>& geometry = symbolic.geometries[i];
    if (is_fresh[i] && (!geometry || !fits(*geometry, symbolic.outputs[i]))) {
      return false;
    }
  }
  numbers.settle(/*counts_versions=*/true);
  size_t index = 0;
  for_each_tensor(numbers.stack, [&](const at::Tensor& tensor) {
    const size_t i = index++;
    if (is_fresh[i]) {
      const SymbolicCall::Geometry& geometry = *symbolic.geometries[i];
      const bool is_number = c10::asIntArrayRefSlowOpt(geometry.sizes) && c10::asIntArrayRefSlowOpt(geometry.strides);
      if (!is_number) {
        forget_known_bytes(tensor.storage().unsafeGetStorageImpl());  // of other sizes, there would be others
        tensor.unsafeGetTensorImpl()->set_sizes_and_strides(geometry.sizes, geometry.strides);
      }
    }
    return numbers.original_of(tensor);
  });
  give_back(call, numbers.stack);
  return true;
}

ShapeEnvPtr find_env(const Call& call) {
  const auto env_of = [](const c10::SymInt& value) -> ShapeEnvPtr {
    SymExprNode* node = value.is_heap_allocated() ? as_expr_node(value.toSymNodeImplUnowned()) : nullptr;
    return node == nullptr ? nullptr : node->env();
  };
  for (const TensorArg& tensor : call.tensors()) {
    if (!tensor.impl->has_symbolic_sizes_strides()) {
      continue;
    }
    for (const c10::SymIntArrayRef values : {tensor.impl->sym_sizes(), tensor.impl->sym_strides()}) {
      for (const c10::SymInt& value : values) {
        if (ShapeEnvPtr env = env_of(value)) {
          return env;
        }
      }
    }
  }
  for (size_t i = 0; i < call.num_args(); ++i) {
    const c10::IValue& value = call.arg(i);
    if (value.isSymInt()) {
      if (ShapeEnvPtr env = env_of(value.toSymInt())) {
        return env;
      }
    } else if (is_symbolic_list(value)) {
      for (const c10::IValue& element : value.toListRef()) {
        if (ShapeEnvPtr env = element.isSymInt() ? env_of(element.toSymInt()) : nullptr) {
          return env;
        }
      }
    } else if (value.isSymFloat() || value.isSymBool()) {
      SymExprNode* node =
          as_expr_node(value.isSymFloat() ? value.toSymFloat().toSymNodeImpl() : value.toSymBool().toSymNodeImpl());
      if (node != nullptr) {
        return node->env();
      }
    }
  }
  return nullptr;
}

}  // namespace

void symbolic_call(Call& call, const ModePtr& mode, Answer answer) {
  // A copy: the argument that holds the mode may be gone after the call.
  const ModePtr held = mode;  // NOLINT(performance-unnecessary-copy-initialization)
  const ShapeEnvPtr env = find_env(call);
  if (env == nullptr) {
    raise_dynamic_shapes(
        call.op_name(), "a size among the arguments is a symbol of PyTorch's own; use a torchfake.ShapeEnv.");
  }
  const AskingOperator asking(call.traits.name);
  const SymbolicRuleFinder finder = g_finder.load(std::memory_order_acquire);
  const SymbolicRules rules = finder == nullptr ? SymbolicRules() : finder(call.traits);
  SymbolicCall symbolic(call, env);
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

at::Tensor symbolic_view(
    const at::Tensor& base,
    c10::SymIntArrayRef sizes,
    c10::SymIntArrayRef strides,
    const c10::SymInt& storage_offset) {
  const FakeTensorImpl& fake = *as_fake(base);
  auto view = c10::make_intrusive<FakeTensorImpl>(
      c10::Storage(base.storage()), fake.key_set(), base.dtype(), fake.claimed_device(), fake.mode());
  // Becomes a plain geometry where all of them are numbers.
  view->set_sizes_and_strides(plain(sizes), plain(strides), plain(storage_offset));
  return at::Tensor(std::move(view));
}

}  // namespace torchfake
