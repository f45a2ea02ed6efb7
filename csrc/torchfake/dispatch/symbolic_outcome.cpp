// Outcomes of calls with symbolic sizes. See Note [Symbolic outcomes].
#include <torchfake/dispatch/symbolic_outcome.h>

#include <torchfake/cache/side_allocations.h>
#include <torchfake/core/allocation.h>
#include <torchfake/core/symbolic_bytes.h>

#include <algorithm>

namespace torchfake {

namespace {

ShapeEnvPtr env_of(const FakeTensorImpl& tensor) {
  for (const c10::SymIntArrayRef values : {tensor.sym_sizes(), tensor.sym_strides()}) {
    for (const c10::SymInt& value : values) {
      SymExprNode* node = value.is_heap_allocated() ? as_expr_node(value.toSymNodeImplUnowned()) : nullptr;
      if (node != nullptr) {
        return node->env();
      }
    }
  }
  return nullptr;
}

// Substitutes the symbols of a call into the expressions of an outcome.
class Filling {
 public:
  Filling(const SymbolicOutcome& outcome, const SymbolicKey& key) : outcome_(outcome), key_(key) {}

  c10::SymInt of(const SymbolicSize& size) {
    if (size.expr == nullptr) {
      return size.number;
    }
    if (size.place >= 0) {
      c10::SymNodeImpl* node = key_.numbers()[size.place].node;
      if (C10_LIKELY(typeid(*node) == typeid(SymExprNode))) {
        return c10::SymInt(c10::SymNode(c10::intrusive_ptr<c10::SymNodeImpl>::unsafe_reclaim_from_nonowning(node)));
      }
      return to_sym_int(key_.env(), key_.numbers()[size.place].expr);
    }
    for (const auto& [expr, value] : done_) {
      if (expr == size.expr) {
        return value;
      }
    }
    ShapeEnv& env = *key_.env();
    const ExprPtr expr = env.simplify(replace_symbols(env.pool(), size.expr, outcome_.placeholders, key_.symbols()));
    done_.emplace_back(size.expr, to_sym_int(key_.env(), expr));
    return done_.back().second;
  }

  c10::SymDimVector of(c10::ArrayRef<SymbolicSize> sizes) {
    c10::SymDimVector result;
    for (const SymbolicSize& size : sizes) {
      result.push_back(of(size));
    }
    return result;
  }

  void give(FakeTensorImpl& tensor, const SymbolicGeometry& geometry) {
    c10::SymDimVector sizes = of(geometry.sizes);
    const c10::SymDimVector strides = of(geometry.strides);
    const c10::SymInt offset = of(geometry.offset);
    const bool is_plain =
        c10::asIntArrayRefSlowOpt(sizes) && c10::asIntArrayRefSlowOpt(strides) && !offset.is_heap_allocated();
    if (is_plain && tensor.has_symbolic_sizes_strides() && !sizes.empty()) {
      // A symbolic tensor stays symbolic: PyTorch cannot convert it back.
      const std::optional<int64_t> first = sizes[0].maybe_as_int();
      if (const ShapeEnvPtr env = env_of(tensor); env && first.has_value()) {
        const ExprPtr number = env->pool().integer(*first);
        sizes[0] = c10::SymInt(c10::SymNode(c10::make_intrusive<SymExprNode>(env, number)));
      }
    }
    tensor.set_sizes_and_strides(sizes, strides, offset);
  }

 private:
  const SymbolicOutcome& outcome_;
  const SymbolicKey& key_;
  c10::SmallVector<std::pair<ExprPtr, c10::SymInt>, 4> done_;
};

at::Tensor make_symbolic_output(
    const OutputRecipe& recipe,
    const SymbolicGeometry& geometry,
    const Call& call,
    Filling& filling,
    const ModePtr& mode) {
  const bool is_fresh = recipe.kind == OutputRecipe::Kind::kFresh;
  const FakeTensorImpl* base = is_fresh ? nullptr : call.tensors()[recipe.input].fake;
  c10::Storage storage = is_fresh ? new_fake_storage(recipe.nbytes, recipe.device, mode->options.storage_observer)
                                  : c10::Storage(base->unsafe_storage());
  if (is_fresh && geometry.nbytes.expr != nullptr) {
    set_symbolic_bytes(storage.unsafeGetStorageImpl(), recipe.device, filling.of(geometry.nbytes));
  }
  auto impl = c10::make_intrusive<FakeTensorImpl>(
      std::move(storage), recipe.keys, recipe.dtype, recipe.device, is_fresh ? mode : base->mode());
  filling.give(*impl, geometry);
  if (recipe.version > 0 && !impl->is_inference()) {
    impl->set_version_counter(c10::VariableVersion(recipe.version));
  }
  if (recipe.is_wrapped_number) {
    impl->set_wrapped_number(true);
  }
  return at::Tensor(std::move(impl));
}

}  // namespace

// Because hints are in the key, a guard with a hint has the same answer as before. Decisions that depend on other facts
// are checked first, because asking for a decision records it.
bool SymbolicOutcome::agrees(const SymbolicKey& key) const {
  if (decisions.empty()) {
    return true;
  }
  ShapeEnv& env = *key.env();
  c10::SmallVector<ExprPtr, 8> questions;
  for (const Placeholders::Decision& decision : decisions) {
    questions.push_back(replace_symbols(env.pool(), decision.expr, placeholders, key.symbols()));
    if (decision.asking == Asking::kStatically) {
      // Records nothing here, but an enclosing call depends on the answer as well.
      if (env.decide(questions.back(), decision.asking) != decision.answer) {
        return false;
      }
    } else if (
        !env.hint(questions.back()) && env.peek(questions.back(), decision.asking) != std::optional(decision.answer)) {
      return false;
    }
  }
  for (size_t i = 0; i < decisions.size(); ++i) {
    if (decisions[i].asking != Asking::kStatically &&
        env.decide(questions[i], decisions[i].asking) != decisions[i].answer) {
      return false;
    }
  }
  return true;
}

void SymbolicOutcome::replay(Call& call, const SymbolicKey& key, const ModePtr& mode) const {
  Filling filling(*this, key);
  const OrderedOutputs ordered(numbers->allocations, mode);
  c10::SmallVector<c10::IValue, 4> results;
  size_t index = 0;
  size_t integer = 0;
  const auto next = [&]() -> c10::IValue {
    const OutputRecipe& recipe = numbers->outputs[index];
    const std::optional<SymbolicGeometry>& geometry = outputs[index++];
    if (recipe.kind == OutputRecipe::Kind::kConstant) {
      const bool has_symbols = recipe.constant.isInt() && integer < integers.size();
      return has_symbols ? c10::IValue(filling.of(integers[integer++])) : recipe.constant;
    }
    const bool is_made = recipe.kind == OutputRecipe::Kind::kFresh || recipe.kind == OutputRecipe::Kind::kView;
    return is_made && geometry && !geometry->is_number ? make_symbolic_output(recipe, *geometry, call, filling, mode)
                                                       : make_output(recipe, call.tensors(), mode);
  };
  for (const int32_t count : numbers->returns) {
    if (count < 0) {
      results.push_back(next());
      continue;
    }
    c10::List<at::Tensor> list;
    list.reserve(count);
    for (int32_t i = 0; i < count; ++i) {
      list.push_back(next().toTensor());
    }
    results.emplace_back(std::move(list));
  }
  announce_allocations(numbers->allocations, results, mode);
  for (const TensorArg& tensor : call.tensors()) {
    if (tensor.is_written && tensor.fake != nullptr && tensor.fake->has_storage()) {
      forget_known_bytes(tensor.fake->storage_impl());  // known values would differ for other sizes
    }
  }
  for (size_t i = 0; i < numbers->changes.size(); ++i) {
    const InputChange& change = numbers->changes[i];
    FakeTensorImpl& tensor = *call.tensors()[change.input].fake;
    for (uint32_t bump = 0; bump < change.version_bumps; ++bump) {
      tensor.bump_version();
    }
    const std::optional<SymbolicGeometry>& symbolic = changes[i];
    const std::optional<Geometry>& at_hints = change.geometry;
    if (symbolic.has_value() && at_hints.has_value()) {
      c10::StorageImpl* storage = tensor.storage_impl();
      if (storage != nullptr && bytes_now(*storage) != at_hints->nbytes) {
        resize_storage(storage, at_hints->nbytes);
        set_symbolic_bytes(storage, tensor.claimed_device(), filling.of(symbolic->nbytes));
      }
      filling.give(tensor, *symbolic);
    }
  }
  torch::jit::drop(*call.stack, call.num_args());
  for (c10::IValue& result : results) {
    call.stack->push_back(std::move(result));
  }
}

SymbolicOutcomes::~SymbolicOutcomes() {
  delete first_.load(std::memory_order_acquire);
}

c10::intrusive_ptr<SymbolicOutcomes> SymbolicOutcomes::of(const CacheEntry& entry) {
  return c10::static_intrusive_pointer_cast<SymbolicOutcomes>(entry.outputs.front().constant.toCapsule());
}

CacheEntryPtr SymbolicOutcomes::entry_for(const CacheKey& key, c10::intrusive_ptr<SymbolicOutcomes> outcomes) {
  auto entry = c10::make_intrusive<CacheEntry>();
  entry->key.assign(key.words().begin(), key.words().end());
  entry->hash = key.hash();
  OutputRecipe holder;
  holder.constant = c10::IValue::make_capsule(std::move(outcomes));
  entry->outputs.push_back(std::move(holder));
  return entry;
}

const SymbolicOutcome* SymbolicOutcomes::find(const SymbolicKey& key) const {
  const SymbolicOutcome* each = first_.load(std::memory_order_acquire);
  while (each != nullptr && !each->agrees(key)) {
    each = each->next.get();
  }
  return each;
}

void SymbolicOutcomes::add(std::unique_ptr<SymbolicOutcome> outcome) {
  if (count_.fetch_add(1, std::memory_order_relaxed) >= kMost) {
    return;
  }
  SymbolicOutcome* added = outcome.release();
  SymbolicOutcome* before = first_.load(std::memory_order_acquire);
  do {
    added->next.release();  // not owned before it is inserted  NOLINT(bugprone-unused-return-value)
    added->next.reset(before);
  } while (!first_.compare_exchange_weak(before, added, std::memory_order_acq_rel));
}

}  // namespace torchfake
