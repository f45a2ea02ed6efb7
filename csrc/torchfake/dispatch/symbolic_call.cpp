// Calls with symbolic sizes. See Note [Symbolic calls].
#include <torchfake/dispatch/allocating_call.h>
#include <torchfake/dispatch/symbolic_call.h>

#include <torchfake/cache/shape_cache.h>
#include <torchfake/core/allocation.h>
#include <torchfake/core/call_context.h>
#include <torchfake/core/symbolic_bytes.h>
#include <torchfake/dispatch/example_call.h>
#include <torchfake/dispatch/hint_call.h>
#include <torchfake/dispatch/meta_call.h>
#include <torchfake/dispatch/miss.h>
#include <torchfake/dispatch/placeholder_call.h>
#include <torchfake/dispatch/replaced_storage.h>
#include <torchfake/dispatch/specialised_call.h>
#include <torchfake/dispatch/symbolic_outcome.h>
#include <torchfake/symbolic/errors.h>

#include <algorithm>
#include <functional>

namespace torchfake {

namespace {

std::atomic<SymbolicRuleFinder> g_finder{nullptr};

}  // namespace

void set_symbolic_rules(SymbolicRuleFinder finder) {
  g_finder.store(finder, std::memory_order_release);
}

SymbolicRules symbolic_rules_of(const OpTraits& traits) {
  const SymbolicRuleFinder finder = g_finder.load(std::memory_order_acquire);
  return finder == nullptr ? SymbolicRules() : finder(traits);
}

bool has_symbols(const Call& call) {
  for (const TensorArg& tensor : call.tensors()) {
    if (tensor.impl->has_symbolic_sizes_strides() || has_symbolic_bytes(*tensor.impl)) {
      return true;
    }
  }
  for (size_t i = 0; i < call.num_args(); ++i) {
    const c10::IValue& value = call.arg(i);
    const bool is_symbolic = is_symbolic_number(value) || is_symbolic_list(value) ||
        (value.isStorage() && value.toStorage().sym_nbytes().is_heap_allocated());
    if (call.traits.args[i].kind == ArgKind::kOther && is_symbolic) {
      return true;
    }
  }
  return false;
}

ModePtr without_observer(const ModePtr& mode) {
  if (mode->options.storage_observer == nullptr && mode->options.recorder == nullptr) {
    return mode;
  }
  FakeModeOptions options = mode->options;
  options.storage_observer = nullptr;
  options.recorder = nullptr;
  return c10::make_intrusive<ModeState>(std::move(options));
}

namespace {

using Answer = void (*)(Call& call, const ModePtr& mode);

bool try_rule(SymbolicCall& call, const std::function<bool()>& rule) {
  try {
    return rule() && call.is_complete();
  } catch (const FakeTensorError& error) {
    if (error.kind() == kUnbackedSymbolKind) {
      throw;
    }
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the call works, so the rule is wrong
  }
  return false;
}

// Uses the numbers of the outcome at the hints as sizes.
void set_numbers(SymbolicCall& call) {
  for (size_t i = 0; i < call.outputs.size(); ++i) {
    const at::Tensor& output = call.outputs[i];
    if (output.defined()) {
      const auto sizes = c10::fromIntArrayRefSlow(output.sizes());
      const auto strides = c10::fromIntArrayRefSlow(output.strides());
      call.set_geometry(i, sizes, strides, output.storage_offset());
    }
  }
}

// Tries the rules of a call one by one. Each starts without decisions: those of a rule that did not apply are
// discarded.
class RuleTrials {
 public:
  RuleTrials(SymbolicCall& call, Placeholders& placeholders)
      : call_(call), placeholders_(placeholders), before_(placeholders.decisions().size()) {}

  bool applies(const std::function<bool()>& rule) {
    if (try_rule(call_, rule)) {
      return true;
    }
    placeholders_.take_decisions_after(before_);
    call_.numbers.clear();
    return false;
  }

  // Like applies(), but rejects a rule that reads a size as a number, since another rule may not have to.
  bool applies_to_any_number(const std::function<bool()>& rule) {
    if (!applies(rule)) {
      return false;
    }
    if (!placeholders_.fix_numbers_after(before_)) {
      return true;
    }
    std::vector<Placeholders::Decision> decisions = placeholders_.take_decisions_after(before_);
    if (!found_) {
      found_.emplace(Found{std::move(decisions), call_.geometries, call_.numbers});
    }
    call_.numbers.clear();
    return false;
  }

  // Uses the first rule that has read a number; returns whether there is one.
  bool settle_for_numbers() {
    if (!found_) {
      return false;
    }
    placeholders_.add_decisions(found_->decisions);
    call_.geometries = std::move(found_->geometries);
    call_.numbers = std::move(found_->numbers);
    return true;
  }

 private:
  struct Found {
    std::vector<Placeholders::Decision> decisions;
    std::vector<std::optional<SymbolicCall::Geometry>> geometries;
    std::vector<c10::SymInt> numbers;
  };

  SymbolicCall& call_;
  Placeholders& placeholders_;
  const size_t before_;
  std::optional<Found> found_;
};

// Determines the sizes with the first rule that applies, preferring rules that read no size as a number.
void run_rules(SymbolicCall& call, Placeholders& placeholders, const ModePtr& mode) {
  const SymbolicRules rules = symbolic_rules_of(call.call.traits);
  const IgnoredSymbols ignored;  // for example those that the kernel on the Meta key creates internally
  RuleTrials trials(call, placeholders);
  const auto own_rule = [&] { return rules.rule(call); };
  const bool has_say = (rules.rule != nullptr && !rules.after_kernels && trials.applies(own_rule)) ||
      trials.applies_to_any_number([&] { return rule_of_meta_kernel(call, mode); }) ||
      trials.applies_to_any_number([&] { return rule_of_composite(call, mode); }) ||
      (rules.rule != nullptr && rules.after_kernels && trials.applies(own_rule)) || trials.settle_for_numbers();
  if (!has_say) {
    specialise(call.call);
    set_numbers(call);
  }
}

c10::SymInt bytes_needed(const SymbolicCall::Geometry& geometry, size_t itemsize) {
  c10::SymInt last = geometry.offset + 1;
  for (size_t i = 0; i < geometry.sizes.size(); ++i) {
    last = last + (geometry.sizes[i] - 1) * geometry.strides[i];
  }
  return last * static_cast<int64_t>(itemsize);
}

// Converts the results of a rule to expressions stored in an outcome.
class Keeping {
 public:
  Keeping(const Placeholders& placeholders, const SymbolicKey& key) : placeholders_(placeholders) {
    for (const SymbolicKey::Number& number : key.numbers()) {
      numbers_.push_back(placeholders.abstract(number.expr));
    }
  }

  SymbolicSize of(const c10::SymInt& value) const {
    SymbolicSize size;
    if (const std::optional<int64_t> number = value.maybe_as_int()) {
      size.number = *number;
      return size;
    }
    size.expr = to_expr(placeholders_.env(), value);
    const auto* found = std::find(numbers_.begin(), numbers_.end(), size.expr);
    size.place = found == numbers_.end() ? -1 : static_cast<int32_t>(found - numbers_.begin());
    return size;
  }

  SymbolicGeometry of(const SymbolicCall::Geometry& geometry, size_t itemsize, size_t nbytes) const {
    SymbolicGeometry kept;
    for (const c10::SymInt& size : geometry.sizes) {
      kept.sizes.push_back(of(size));
    }
    for (const c10::SymInt& stride : geometry.strides) {
      kept.strides.push_back(of(stride));
    }
    kept.offset = of(geometry.offset);
    kept.nbytes = of(bytes_for(geometry, itemsize, nbytes));
    const auto is_number = [](const SymbolicSize& size) { return size.expr == nullptr; };
    kept.is_number = std::all_of(kept.sizes.begin(), kept.sizes.end(), is_number) &&
        std::all_of(kept.strides.begin(), kept.strides.end(), is_number) && is_number(kept.offset);
    return kept;
  }

 private:
  // The bytes that a tensor of this geometry needs, if that equals the number at the hints; otherwise that number.
  static c10::SymInt bytes_for(const SymbolicCall::Geometry& geometry, size_t itemsize, size_t nbytes) {
    const c10::SymInt bytes = bytes_needed(geometry, itemsize);
    return hint_of(bytes) == std::optional(static_cast<int64_t>(nbytes)) ? bytes
                                                                         : c10::SymInt(static_cast<int64_t>(nbytes));
  }

  const Placeholders& placeholders_;
  c10::SmallVector<ExprPtr, 16> numbers_;
};

SymbolicGeometry of_numbers(const Geometry& geometry) {
  const auto number = [](int64_t value) {
    SymbolicSize size;
    size.number = value;
    return size;
  };
  SymbolicGeometry kept;
  for (const int64_t size : geometry.sizes) {
    kept.sizes.push_back(number(size));
  }
  for (const int64_t stride : geometry.strides) {
    kept.strides.push_back(number(stride));
  }
  kept.offset = number(geometry.storage_offset);
  kept.nbytes = number(static_cast<int64_t>(geometry.nbytes));
  return kept;
}

// Whether the call gives this argument other sizes, strides or bytes.
bool is_moved(const CacheEntry& at_hints, uint32_t input) {
  return std::any_of(at_hints.changes.begin(), at_hints.changes.end(), [&](const InputChange& change) {
    return change.input == input && change.geometry.has_value();
  });
}

// Computes the outcome of a call from its outcome at the hints, `numbers`.
std::unique_ptr<SymbolicOutcome> work_out(
    Call& call,
    const SymbolicKey& key,
    CacheEntryPtr numbers,
    std::vector<at::Tensor> outputs,
    const ModePtr& mode) {
  auto outcome = std::make_unique<SymbolicOutcome>();
  outcome->numbers = std::move(numbers);
  const CacheEntry& at_hints = *outcome->numbers;
  outcome->outputs.resize(at_hints.outputs.size());
  outcome->changes.resize(at_hints.changes.size());
  for (size_t i = 0; i < at_hints.changes.size(); ++i) {
    const std::optional<Geometry>& geometry = at_hints.changes[i].geometry;
    if (geometry.has_value()) {
      outcome->changes[i] = of_numbers(*geometry);
    }
  }
  if (key.env() == nullptr) {
    return outcome;  // every symbol has become a number
  }
  Placeholders placeholders(key.env(), key.symbols());
  const ModePtr unobserved = without_observer(mode);
  PlaceholderCall with_placeholders(call, &placeholders, unobserved);
  Call inner(call.op, call.traits, call.keys, &with_placeholders.stack);
  std::vector<std::pair<std::vector<c10::SymInt>, c10::SymInt>> before;  // sizes, and bytes of the storage
  for (const TensorArg& argument : inner.tensors()) {
    const c10::StorageImpl* storage = storage_of(*argument.impl);
    before.emplace_back(argument.impl->sym_sizes().vec(), storage == nullptr ? c10::SymInt(0) : storage->sym_nbytes());
  }
  SymbolicCall symbolic(inner, std::move(outputs));
  for (const OutputRecipe& recipe : at_hints.outputs) {
    if (recipe.kind != OutputRecipe::Kind::kConstant) {
      const bool is_kept = recipe.kind == OutputRecipe::Kind::kInput && !is_moved(at_hints, recipe.input);
      symbolic.same_as.push_back(is_kept ? inner.tensors()[recipe.input].impl : nullptr);
    }
  }
  run_rules(symbolic, placeholders, unobserved);
  const Keeping keeping(placeholders, key);
  for (const c10::SymInt& number : symbolic.numbers) {
    outcome->integers.push_back(keeping.of(number));
  }
  size_t tensor = 0;
  for (size_t i = 0; i < at_hints.outputs.size(); ++i) {
    const OutputRecipe& recipe = at_hints.outputs[i];
    if (recipe.kind == OutputRecipe::Kind::kConstant) {
      continue;
    }
    const std::optional<SymbolicCall::Geometry>& geometry = symbolic.geometries[tensor++];
    if (!geometry) {
      continue;
    }
    if (recipe.kind != OutputRecipe::Kind::kInput) {
      outcome->outputs[i] = keeping.of(*geometry, recipe.dtype.itemsize(), recipe.nbytes);
      continue;
    }
    // An argument that is written to and keeps its sizes at the hints must keep them for all values: an out= argument
    // would be resized otherwise.
    const size_t itemsize = call.tensors()[recipe.input].impl->itemsize();
    for (size_t j = 0; j < at_hints.changes.size(); ++j) {
      const InputChange& change = at_hints.changes[j];
      if (change.input == recipe.input && change.geometry) {
        // A storage only grows.
        bytes_needed(*geometry, itemsize).sym_gt(before[recipe.input].second).guard_bool(__FILE__, __LINE__);
        outcome->changes[j] = keeping.of(*geometry, itemsize, change.geometry->nbytes);
      }
    }
    if (!is_moved(at_hints, recipe.input)) {
      for (size_t dim = 0; dim < geometry->sizes.size(); ++dim) {
        geometry->sizes[dim].sym_eq(before[recipe.input].first[dim]).guard_bool(__FILE__, __LINE__);
      }
    }
  }
  const bool has_other_changes =
      std::any_of(at_hints.changes.begin(), at_hints.changes.end(), [&](const InputChange& change) {
        return change.geometry &&
            std::none_of(at_hints.outputs.begin(), at_hints.outputs.end(), [&](const OutputRecipe& recipe) {
                 return recipe.kind == OutputRecipe::Kind::kInput && recipe.input == change.input;
               });
      });
  if (has_other_changes) {
    specialise(inner);
  }
  placeholders.record_decisions();
  outcome->decisions = placeholders.decisions();
  outcome->placeholders.assign(placeholders.list().begin(), placeholders.list().end());
  outcome->env = placeholders.env();
  return outcome;
}

// Handles a cache miss. Returns null after handling a call that no entry can describe.
std::unique_ptr<SymbolicOutcome> run_miss(Call& call, SymbolicKey& key, const ModePtr& mode, Answer answer) {
  HintCall numbers(call, HintCall::StandIns::kOfWrittenToo);
  Call with_numbers(call.op, call.traits, call.keys, &numbers.stack);
  const OutcomeRecorder recorder(with_numbers);
  std::vector<SideAllocation> allocations = side_allocations(with_numbers);
  answer(with_numbers, mode);
  if (const uint32_t settings = call.traits.settings.load(std::memory_order_relaxed);
      settings != key.words().settings()) {
    key.words().add_more_settings(settings);
  }
  Bypass reason = key.bypass();
  CacheEntryPtr entry = recorder.outcome(with_numbers, key.words(), c10::Device(c10::kCPU), reason);
  if (!entry) {
    shape_cache::count_bypass(reason);
    answer_specialised(call, mode, answer);
    return nullptr;
  }
  entry->allocations = std::move(allocations);
  std::vector<at::Tensor> outputs;
  for_each_tensor(numbers.stack, [&](const at::Tensor& tensor) { outputs.push_back(tensor); });
  return work_out(call, key, std::move(entry), std::move(outputs), mode);
}

void keep(std::unique_ptr<SymbolicOutcome> outcome, CacheKey& key, SymbolicOutcomes* kept) {
  if (kept != nullptr) {
    return kept->add(std::move(outcome));
  }
  auto outcomes = c10::make_intrusive<SymbolicOutcomes>();
  outcomes->add(std::move(outcome));
  shape_cache::insert(SymbolicOutcomes::entry_for(key, std::move(outcomes)));
}

}  // namespace

void symbolic_call(Call& call, const ModePtr& mode, Answer answer) {
  // Copied: the argument that holds the mode may be destroyed during the call.
  const ModePtr held = mode;  // NOLINT(performance-unnecessary-copy-initialization)
  const AllocatingCall allocating(call.traits, call.tensors(), *held);
  const AskingOperator asking(call.traits.name);
  if (has_fake_impl(call)) {  // the fake implementation sees the symbols
    CallContext context;
    context.is_unkeyed = true;
    return fake_impl_call(call, held);
  }
  if (call.traits.replaces_storage && replace_storage(call)) {
    return;
  }
  if (!has_hints_of_ours(call)) {
    return example_call(call, held, answer);
  }
  SymbolicKey key(call, *held);
  const bool is_kept = key.bypass() == Bypass::kNone && shape_cache::enabled() && held->cache.is_on();
  c10::intrusive_ptr<SymbolicOutcomes> kept;
  if (is_kept) {
    if (const CacheEntry* entry = shape_cache::find(key.words())) {
      kept = SymbolicOutcomes::of(*entry);
      const SymbolicOutcome* found = shape_cache::cross_check() ? nullptr : kept->find(key);
      if (found != nullptr) {
        if (CallContext* around = CallContext::current()) {
          around->settings |= key.words().settings();
        }
        return found->replay(call, key, held);
      }
    }
  }
  std::unique_ptr<SymbolicOutcome> made = run_miss(call, key, held, answer);
  if (made == nullptr) {
    return;
  }
  made->replay(call, key, held);
  if (is_kept) {
    keep(std::move(made), key.words(), kept.get());
  }
}

}  // namespace torchfake
