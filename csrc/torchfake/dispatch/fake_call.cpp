// A call on strided fakes: key, then hit or miss, with constant propagation alongside.
#include <torchfake/dispatch/fake_call.h>

#include <torchfake/cache/cache_key.h>
#include <torchfake/cache/outcome.h>
#include <torchfake/cache/shape_cache.h>
#include <torchfake/core/call_context.h>
#include <torchfake/dispatch/admission.h>
#include <torchfake/dispatch/allocating_call.h>
#include <torchfake/dispatch/layout_call.h>
#include <torchfake/dispatch/miss.h>
#include <torchfake/dispatch/symbolic_call.h>
#include <torchfake/symbolic/shape_env.h>
#include <torchfake/values/deriving.h>
#include <torchfake/values/value_tracker.h>

#include <algorithm>

namespace torchfake {

namespace {

// Whether the values of the outputs may depend on the key only. See Note [Constants].
bool has_constant_source(const Call& call) {
  return call.traits.values == ValueSource::kConstant || call.traits.values == ValueSource::kOverwrite;
}

// Whether the values that a hit derives may be stored with the entry. See Note [Constants].
bool may_be_stored(const Call& call, const CacheEntry& entry, const ModeState& mode) {
  const auto is_fresh = [](const OutputRecipe& output) { return output.kind == OutputRecipe::Kind::kFresh; };
  const auto is_tensor = [](int32_t size) { return size == -1; };
  return follows_from_sources(call.traits) && !mode.options.propagate_real_tensors &&
      std::all_of(entry.outputs.begin(), entry.outputs.end(), is_fresh) &&
      std::all_of(entry.returns.begin(), entry.returns.end(), is_tensor);
}

// Handles a hit whose sources equal those of stored values: replays the outcome together with these values.
bool replayed_with_values(Call& call, const CacheEntry& entry, const Sources& sources, const ModePtr& mode) {
  const DerivedValues* derived = entry.values.load(std::memory_order_acquire);
  while (derived != nullptr && !(fits_mode(*derived, mode->options) && sources.are_those_of(*derived))) {
    derived = derived->next.load(std::memory_order_acquire);
  }
  if (derived == nullptr) {
    return false;
  }
  replay(call, entry, mode);
  const c10::ArrayRef<c10::IValue> outputs = outputs_of(call);
  for (size_t i = 0; i < std::min(outputs.size(), derived->outputs.size()); ++i) {
    give_values(*as_fake(outputs[i].toTensor()), derived->outputs[i]);
  }
  return true;
}

// Stores the values that a hit has derived from its key, or from `sources` if not null.
void store_values(
    const Call& call,
    const CacheEntry& entry,
    const Sources* sources,
    bool computes,
    const ModeState& mode) {
  if (sources == nullptr && !follows_from_key(call)) {
    return;
  }
  c10::intrusive_ptr<DerivedValues> derived = derived_values(call, mode, computes || sources == nullptr);
  if (!derived) {
    return;
  }
  if (sources != nullptr) {
    derived->sources = sources->copy();
  }
  shape_cache::set_values(entry, std::move(derived));
}

// Handles a hit, with constant propagation alongside.
void replay_hit(Call& call, const CacheEntry& entry, const CacheKey& key, ValueTracker& values, const ModePtr& mode) {
  if (CallContext* around = CallContext::current()) {
    around->settings |= key.settings();
  }
  const ModeState& state = *mode;  // `mode` may be part of an argument and die with it; outputs keep the state alive
  const c10::Device device = entry.device;
  std::optional<Sources> sources;
  if (values.follows_from_inputs() && may_be_stored(call, entry, state)) {
    if (!sources.emplace().read(call)) {
      sources.reset();
    } else if (replayed_with_values(call, entry, *sources, mode)) {
      return;
    }
  }
  const bool lacks_constant =
      has_constant_source(call) && entry.is_one_tensor && entry.values.load(std::memory_order_acquire) == nullptr;
  CacheEntryPtr
      kept;  // set if values may be stored with the entry, which is otherwise only valid until the next lookup
  if ((sources.has_value() && shape_cache::takes_values(entry)) || lacks_constant) {
    kept = CacheEntryPtr::unsafe_reclaim_from_nonowning(const_cast<CacheEntry*>(&entry));
  }
  values.keep_arguments();
  replay(call, entry, mode);
  values.finish(call, device);
  if (kept && (sources.has_value() || kept->outputs.front().kind != OutputRecipe::Kind::kView)) {
    store_values(call, *kept, sources ? &*sources : nullptr, values.computes(), state);
  }
}

}  // namespace

void fake_call(Call& call, const ModePtr& mode) {
  const AllocatingCall allocating(call.traits, call.tensors(), *mode);
  if (call.has_non_fake()) {
    admit_real_tensors(call, mode);
    if (C10_UNLIKELY(call.has_non_fake()) && has_layout_fake(call)) {
      return layout_call(call, mode);  // a real tensor that was sparse
    }
  }
  ValueTracker values(call, *mode);
  CacheKey key;
  const Bypass bypass = shape_cache::enabled() && mode->cache.is_on() ? key.build(call, *mode) : Bypass::kDisabled;
  const CacheEntry* entry = C10_LIKELY(bypass == Bypass::kNone) ? shape_cache::find(key) : nullptr;
  if (C10_LIKELY(entry != nullptr && !shape_cache::cross_check())) {
    return replay_hit(call, *entry, key, values, mode);
  }
  if (bypass != Bypass::kNone && C10_UNLIKELY(!ShapeEnv::exist()) && has_symbols(call)) {
    ShapeEnv::note_existence();  // the first symbol is PyTorch's own, and the mode has no environment
    return symbolic_call(call, ModePtr(mode), &fake_call);
  }
  if (C10_UNLIKELY(requests_sparse_layout(call))) {
    return layout_call(call, mode);
  }
  values.keep_arguments();
  if (C10_LIKELY(bypass == Bypass::kNone)) {
    return run_and_remember(call, values, ModePtr(mode), key, entry);
  }
  const c10::Device device = run_without_key(call, values, ModePtr(mode), bypass);
  values.finish(call, device);
}

}  // namespace torchfake
