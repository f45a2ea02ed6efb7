// Calls with unbacked symbols or with PyTorch's own nodes: handled on the symbols themselves, and not cached.
#include <torchfake/dispatch/example_call.h>

#include <torchfake/core/kernel_failures.h>
#include <torchfake/core/symbolic_bytes.h>
#include <torchfake/dispatch/hint_call.h>
#include <torchfake/dispatch/placeholder_call.h>
#include <torchfake/dispatch/specialised_call.h>
#include <torchfake/dispatch/symbolic_call.h>
#include <torchfake/symbolic/errors.h>

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

// A view of `base` with the metadata of the fake `like`, except for its geometry.
at::Tensor view_of(const at::Tensor& base, const at::Tensor& like, const Geometry& geometry) {
  const FakeTensorImpl& fake = *as_fake(like);
  auto view = c10::make_intrusive<FakeTensorImpl>(
      c10::Storage(base.storage()), fake.key_set(), like.dtype(), fake.claimed_device(), fake.mode());
  // If all of them are numbers, the geometry becomes plain.
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
    views.push_back(view_of(base, base, *geometry));
  }
  const bool is_list = call.op.schema().returns()[0].type()->kind() == c10::TypeKind::ListType;
  give_back(call, {is_list ? c10::IValue(views) : c10::IValue(views.get(0))}, none);
  return true;
}

void run_with(HintCall& numbers, const Call& call, const ModePtr& mode, Answer answer) {
  Call with_numbers(call.op, call.traits, call.keys, &numbers.stack);
  answer(with_numbers, mode);
}

// The results of a call at its hints or examples, which get the geometries that a rule determines.
class NumberResults {
 public:
  NumberResults(Call& call, HintCall& numbers) : symbolic(call, tensors_of(numbers.stack)), numbers_(numbers) {
    for (const at::Tensor& tensor : symbolic.outputs) {
      is_made_.push_back(tensor.defined() && numbers.original_of(tensor).is_same(tensor) && as_fake(tensor) != nullptr);
    }
  }

  SymbolicCall symbolic;

  // Whether the rule determined the geometry of every result that is not an argument.
  bool fit() const {
    for (size_t i = 0; i < is_made_.size(); ++i) {
      if (is_made_[i] && !symbolic.fits(i)) {
        return false;
      }
    }
    return true;
  }

  // Takes results that are integers from those of a kernel.
  void take_numbers(const torch::jit::Stack& made) {
    for (size_t i = 0; i < numbers_.stack.size() && i < made.size(); ++i) {
      if (numbers_.stack[i].isInt() && made[i].isSymInt()) {
        numbers_.stack[i] = made[i];
      }
    }
  }

  // Replaces the arguments of the call by its results.
  void give() {
    numbers_.settle();
    std::vector<std::pair<at::Tensor, at::Tensor>> views;
    for (size_t i = 0; i < is_made_.size(); ++i) {
      const std::optional<Geometry>& geometry = symbolic.geometries[i];
      if (!is_made_[i] || !geometry.has_value()) {
        continue;
      }
      const at::Tensor& output = symbolic.outputs[i];
      if (const at::Tensor base = numbers_.base_of(output); base.defined()) {
        views.emplace_back(output, view_of(base, output, *geometry));
      } else if (is_symbolic(*geometry)) {
        if (!symbolic.call.traits.is_view) {
          forget_known_bytes(output.storage().unsafeGetStorageImpl());  // known values would differ for other sizes
        }
        output.unsafeGetTensorImpl()->set_sizes_and_strides(geometry->sizes, geometry->strides, geometry->offset);
      }
    }
    give_back(symbolic.call, numbers_.stack, [&](const at::Tensor& tensor) {
      for (const auto& [output, view] : views) {
        if (output.is_same(tensor)) {
          return view;
        }
      }
      return numbers_.original_of(tensor);
    });
  }

 private:
  static std::vector<at::Tensor> tensors_of(const torch::jit::Stack& stack) {
    std::vector<at::Tensor> tensors;
    for_each_tensor(stack, [&](const at::Tensor& tensor) { tensors.push_back(tensor); });
    return tensors;
  }

  HintCall& numbers_;
  std::vector<bool> is_made_;
};

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
  NumberResults results(call, *numbers);
  if (!rule(results.symbolic) || !results.fit()) {
    return false;
  }
  results.give();
  return true;
}

// Runs the operator's kernels on the symbols, as PyTorch does.
class KernelsOnSymbols {
 public:
  KernelsOnSymbols(const Call& call, const ModePtr& mode) : call_(call), mode_(without_observer(mode)) {}

  using Kernel = std::optional<torch::jit::Stack> (*)(const Call& call, const ModePtr& mode);
  static constexpr Kernel kAll[] = {&results_of_meta_kernel, &results_of_composite};

  // The results of a kernel on stand-ins with the symbols of the call; nullopt if there is none, or if it failed.
  std::optional<torch::jit::Stack> run(Kernel kernel) {
    const IgnoredSymbols ignored;
    try {
      PlaceholderCall same_symbols(call_, nullptr, mode_);
      const Call inner(call_.op, call_.traits, call_.keys, &same_symbols.stack);
      return kernel(inner, mode_);
    } catch (const FakeTensorError& error) {
      note_failure(error.kind() == kUnbackedSymbolKind);
    } catch (const c10::Error&) {
      note_failure(false);
    } catch (const std::exception& error) {  // including Python's errors
      note_failure(!is_kernel_failure(error));
    }
    return std::nullopt;
  }

  // Throws the first error that is not merely about a symbol that cannot be specialised.
  void raise_failure() const {
    if (failure_) {
      std::rethrow_exception(failure_);
    }
  }

 private:
  void note_failure(bool explains) {
    if (explains && !failure_) {
      failure_ = std::current_exception();
    }
  }

  const Call& call_;
  const ModePtr mode_;
  std::exception_ptr failure_;
};

// Returns whether the operator's own rule or a kernel applied. Throws if none did and a symbol has no hint.
bool answer_by_kernels(Call& call, const ModePtr& mode, SymbolicRule own_rule, Answer answer) {
  std::optional<HintCall> numbers(std::in_place, call, HintCall::StandIns::kOwnStorages);
  KernelsOnSymbols kernels(call, mode);
  const bool has_examples = numbers->has_examples();
  if (!has_examples && mode->options.propagate_real_tensors) {
    return false;  // real values have the sizes of the hints
  }
  // The number of views that an example produces is not the number for all sizes.
  const bool has_own_rule = own_rule != nullptr &&
      !(has_examples && call.traits.is_view && call.op.schema().returns()[0].type()->kind() == c10::TypeKind::ListType);
  if (has_examples && !has_own_rule) {
    for (const KernelsOnSymbols::Kernel kernel : KernelsOnSymbols::kAll) {
      if (kernels.run(kernel)) {
        break;
      }
    }
    numbers.emplace(call, HintCall::StandIns::kOwnStorages);  // examples consistent with what the kernel recorded
  }
  run_with(*numbers, call, mode, answer);
  if (has_own_rule) {
    NumberResults results(call, *numbers);
    if (own_rule(results.symbolic) && results.fit()) {
      results.give();
      return true;
    }
  }
  for (const KernelsOnSymbols::Kernel kernel : KernelsOnSymbols::kAll) {
    NumberResults results(call, *numbers);
    const std::optional<torch::jit::Stack> made = kernels.run(kernel);
    if (made.has_value() && take_sizes(results.symbolic, made) && results.fit()) {
      results.take_numbers(*made);
      results.give();
      return true;
    }
  }
  if (has_examples) {
    kernels.raise_failure();
  }
  return false;
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
  // Kernels read sizes of views and of lists as numbers.
  const bool is_preferred = (call.traits.is_view && !call.traits.mutates) || call.traits.is_foreach;
  if (!call.traits.has_out && answer_by_kernels(call, mode, is_preferred ? rules.rule : nullptr, answer)) {
    return;
  }
  answer_specialised(call, mode, answer);
}

}  // namespace torchfake
