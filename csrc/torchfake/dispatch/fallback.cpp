// The one kernel on the Fake key: every operator on fakes, and every operator in the mode, comes through here.
#include <torch/library.h>

#include <torchfake/convert/to_fake.h>
#include <torchfake/core/activation.h>
#include <torchfake/core/call_context.h>
#include <torchfake/core/errors.h>
#include <torchfake/dispatch/admission.h>
#include <torchfake/dispatch/constants.h>
#include <torchfake/dispatch/device_rule.h>
#include <torchfake/dispatch/known_values.h>
#include <torchfake/dispatch/layouts.h>
#include <torchfake/dispatch/meta_call.h>
#include <torchfake/dispatch/shape_cache.h>
#include <torchfake/dispatch/unboxed_call.h>
#include <torchfake/dispatch/wrap_outputs.h>
#include <torchfake/dispatch/zeros_call.h>
#include <torchfake/rules/refused_dtypes.h>
#include <torchfake/rules/rules.h>

#include <limits>
namespace torchfake {

namespace {

// Fakes carry their mode; this one serves where a key set with Fake comes along without either.
const ModePtr& default_mode() {
  static const ModePtr mode = [] {
    ModePtr made = c10::make_intrusive<ModeState>(FakeModeOptions{});
    made->used_in = std::numeric_limits<uint32_t>::max();  // not counted among those in use: it never ends
    return made;
  }();
  return mode;
}

bool is_lift(const OpTraits& traits) {
  return traits.name == "aten::lift_fresh" || traits.name == "aten::lift" || traits.name == "aten::lift_fresh_copy";
}

[[noreturn]] void refuse_unknown_values(const Call& call) {
  if (call.traits.data_dependent) {
    raise(
        ErrorKind::kDataDependentOutput,
        call.op_name(),
        "the result is a value, and this fake tensor holds none. Values are known only where they follow from small "
        "constants; keep this branch out of the fake run, pass the value in, or let real values travel along "
        "(propagate_real_tensors).");
  }
  raise(
      ErrorKind::kDynamicOutputShape,
      call.op_name(),
      "the shape of the result depends on values, and this fake tensor holds none. Values are known only where they "
      "follow from small constants; use an operator whose output has a fixed shape, or let real values travel along "
      "(propagate_real_tensors).");
}

std::optional<ValueMemos::Kind> memo_kind(const std::string& name) {
  if (name == "aten::nonzero") {
    return ValueMemos::kNonzero;
  }
  if (name == "aten::_local_scalar_dense") {
    return ValueMemos::kItem;
  }
  if (name == "aten::_unique2" || name == "aten::unique_dim" || name == "aten::_unique") {
    return ValueMemos::kUnique;
  }
  if (name == "aten::unique_consecutive" || name == "aten::unique_dim_consecutive") {
    return ValueMemos::kUniqueConsecutive;
  }
  return std::nullopt;
}

// The size of what was found, or the value itself.
void remember_answer(FakeTensorImpl& asked, const std::string& name, const c10::IValue& answer) {
  if (std::optional<ValueMemos::Kind> kind = memo_kind(name)) {
    asked.set_memo(*kind, answer.isTensor() ? c10::Scalar(answer.toTensor().size(0)) : answer.toScalar());
  }
}

// An operator whose outcome depends on values, and all of them are known: the real one answers.
void answer_from_values(Call& call, const ValueTracker& values, c10::Device device, const ModePtr& mode) {
  const auto asked = c10::intrusive_ptr<c10::TensorImpl>::unsafe_reclaim_from_nonowning(call.tensors()[0].impl);
  std::vector<at::Tensor> outs;
  for (const TensorArg& tensor : call.tensors()) {
    if (tensor.is_out) {
      outs.emplace_back(c10::intrusive_ptr<c10::TensorImpl>::unsafe_reclaim_from_nonowning(tensor.impl));
    }
  }
  values.run_real(call);
  const size_t first = call.stack->size() - call.traits.num_returns;
  for (size_t i = first; i < call.stack->size(); ++i) {
    c10::IValue& value = (*call.stack)[i];
    if (i - first < outs.size()) {
      lay_out_as(outs[i - first], value.toTensor());
      value = outs[i - first];
      continue;
    }
    if (value.isTensor() && value.toTensor().defined()) {
      at::Tensor real = value.toTensor();
      at::Tensor fake = to_fake(real, mode, device);
      if (real.numel() <= value_limit(mode->options)) {
        // The fake's storage mirrors the real one's, which nobody else has.
        set_known_bytes(fake.storage().unsafeGetStorageImpl(), device, real.storage().getWeakStorageImpl().lock());
      }
      value = std::move(fake);
    }
  }
  if (FakeTensorImpl* fake = as_fake(asked.get())) {
    remember_answer(*fake, call.traits.name, (*call.stack)[first]);
  }
}

bool masks_give_shape(const OpTraits& traits) {
  return traits.name == "aten::index" || traits.name == "aten::_unsafe_index" || traits.name == "aten::masked_select";
}

// An input may have been resized, or have got a storage that was made elsewhere (`x.set_(storage)` of torch.load).
void after_a_change(const Inputs& inputs, const ModePtr& mode) {
  inputs.for_each_fake([&](const FakeTensorImpl& fake) {
    if (fake.has_storage()) {
      note_resize(fake.unsafe_storage().unsafeGetStorageImpl());
      adopt_storage(fake.unsafe_storage(), fake.claimed_device(), mode->options.storage_observer);
    }
  });
}

// What runs nowhere on a device for real.
void refuse_without_kernel(const Call& call, c10::Device device) {
  const bool lacks = (call.traits.lacks_cpu && device.is_cpu()) || (call.traits.lacks_cuda && device.is_cuda());
  TORCH_CHECK_NOT_IMPLEMENTED(
      !lacks,
      "Could not run '",
      call.op_name(),
      "' with arguments from the '",
      c10::DeviceTypeName(device.type()),
      "' backend: it has kernels for other devices only.");
}

// A GPU solves by another method, which finds no rank.
bool is_other_than_on_cpu(const Call& call, c10::Device device) {
  return call.traits.name == "aten::linalg_lstsq" && !device.is_cpu();
}

// Steps 2, 4 and 5, for a call that the cache does not know. Returns the device that fresh outputs claim.
c10::Device run(Call& call, const ValueTracker& values, const ModePtr& mode) {
  if (C10_UNLIKELY(has_fake_impl(call))) {
    const bool has_fakes = !call.tensors().empty() && call.tensors().front().fake != nullptr;
    const c10::Device device = has_fakes ? call.tensors().front().fake->claimed_device() : c10::Device(c10::kCPU);
    const Inputs inputs(call);
    fake_impl_call(call, mode);
    wrap_outputs(call, inputs, device, mode);
    return device;
  }
  const c10::Device device = device_rule(call, *mode);
  refuse_other_layouts(call);
  refuse_without_kernel(call, device);
  refuse_under_autocast(call, device);
  if (call.traits.refused_dtypes != nullptr) {
    call.traits.refused_dtypes->check(call, device);
  }
  const Rule rule = find_rule(call.traits);
  if ((call.traits.data_dependent || call.traits.dynamic_shape) && !masks_give_shape(call.traits)) {
    if (values.inputs_known() && !is_other_than_on_cpu(call, device)) {
      answer_from_values(call, values, device, mode);
      return device;
    }
    if (call.traits.native == nullptr) {
      if (rule == nullptr || rule(call, mode) == RuleResult::kContinue) {
        refuse_unknown_values(call);
      }
      return device;
    }
  }
  const Inputs inputs(call);
  if (rule == nullptr || rule(call, mode) == RuleResult::kContinue) {
    if (has_meta_kernel(call)) {
      meta_call(call, device);
    } else {
      zeros_call(call, device, *mode);
    }
  }
  wrap_outputs(call, inputs, device, mode);
  if (C10_UNLIKELY(call.traits.changes_geometry)) {
    after_a_change(inputs, mode);
  }
  return device;
}

bool all_empty(const Call& call) {
  return std::all_of(
      call.tensors().begin(), call.tensors().end(), [](const TensorArg& tensor) { return tensor.impl->numel() == 0; });
}

// The same, remembered under `key`, and with the values that go along. In cross-check mode `found` is what the cache says,
// and has to be what comes out. Of empty tensors all is known, so that the real operator runs on the side; what it finds
// wrong follows from the key, and is remembered in place of the outcome.
void run_and_remember(Call& call, ValueTracker& values, const ModePtr& mode, CacheKey& key, const CacheEntry* found) {
  const CacheEntryPtr known =
      found == nullptr ? CacheEntryPtr() : CacheEntryPtr::unsafe_reclaim_from_nonowning(const_cast<CacheEntry*>(found));
  const bool values_follow_from_key = all_empty(call);
  const OutcomeRecorder recorder(call);
  CallContext context;
  c10::Device device(c10::kCPU);
  const auto complete_key = [&] {
    if (C10_UNLIKELY((context.settings & ~key.settings()) != 0)) {
      call.traits.settings.fetch_or(context.settings, std::memory_order_relaxed);
      key.add_more_settings(context.settings);
    }
  };
  const auto remember = [&](CacheEntryPtr outcome) {
    if (known && !known->same_outcome(*outcome)) {
      raise(
          ErrorKind::kMetadataMismatch,
          call.op_name(),
          "the shape cache and the kernel disagree on what this call returns; please report it.");
    }
    if (!known) {
      shape_cache::insert(std::move(outcome));
    }
  };
  try {
    device = run(call, values, mode);
    complete_key();
    Bypass reason = context.is_unkeyed ? Bypass::kDataDependent : Bypass::kNone;
    CacheEntryPtr outcome = reason == Bypass::kNone ? recorder.outcome(call, key, device, reason) : CacheEntryPtr();
    if (values_follow_from_key) {
      values.follow(call, device);
    }
    if (outcome) {
      remember(std::move(outcome));
    } else {
      shape_cache::count_bypass(reason);
    }
  } catch (const c10::Error& error) {
    complete_key();
    const auto* typed = dynamic_cast<const FakeTensorError*>(&error);
    const bool is_mismatch = typed != nullptr && typed->kind() == ErrorKind::kMetadataMismatch;
    if (CacheEntryPtr outcome = context.is_unkeyed || is_mismatch ? CacheEntryPtr() : error_outcome(key, error)) {
      remember(std::move(outcome));
    }
    throw;
  }
  if (!values_follow_from_key) {
    values.follow(call, device);
  }
}

// A call without a key.
c10::Device run_without_key(Call& call, const ValueTracker& values, const ModePtr& mode, Bypass reason) {
  shape_cache::count_bypass(reason);
  CallContext context;
  // What a call around this one learns from it, its key does not contain either.
  context.is_unkeyed = reason == Bypass::kDataDependent || reason == Bypass::kNotBuiltin || call.traits.needs_values;
  return run(call, values, mode);
}

void answer(Call& call, const ModePtr& mode) {
  if (call.has_non_fake()) {
    admit_real_tensors(call, mode);
  }
  ValueTracker values(call, *mode);
  CacheKey key;
  const Bypass bypass = shape_cache::enabled() && mode->cache.is_on() ? key.build(call, *mode) : Bypass::kDisabled;
  c10::Device device(c10::kCPU);
  CacheEntryPtr hit;  // held where it may be given a constant
  if (C10_LIKELY(bypass == Bypass::kNone)) {
    const CacheEntry* entry = shape_cache::find(key);
    if (C10_LIKELY(entry != nullptr && !shape_cache::cross_check())) {
      device = entry->device;
      if (call.traits.values == ValueSource::kConstant) {
        hit = CacheEntryPtr::unsafe_reclaim_from_nonowning(const_cast<CacheEntry*>(entry));
      }
      if (CallContext* around = CallContext::current()) {
        around->settings |= key.settings();
      }
      replay(call, *entry, mode);
    } else {
      return run_and_remember(call, values, ModePtr(mode), key, entry);
    }
  } else {
    device = run_without_key(call, values, ModePtr(mode), bypass);
  }
  values.follow(call, device);
  if (hit) {
    remember_constant(call, *hit);
  }
}

bool is_recorded(const ModeState& mode) {
  return mode.options.recorder != nullptr || scope_is_recorded();
}

void record(ModePtr mode, Call& call) {
  const std::shared_ptr<OpRecorder> of_scope = scope_recorder();
  const std::vector<c10::IValue> arguments(
      call.stack->end() - static_cast<ptrdiff_t>(call.num_args()), call.stack->end());
  answer(call, mode);
  for (OpRecorder* recorder : {mode->options.recorder.get(), of_scope.get()}) {
    if (recorder != nullptr) {
      recorder->on_op(call.op, arguments, outputs_of(call));
    }
  }
}

void lift_argument(Call& call, const ModePtr& mode) {
  at::Tensor fake = lift(call.arg(0).toTensor(), mode, call.traits.name != "aten::lift_fresh");
  torch::jit::drop(*call.stack, call.num_args());
  call.stack->emplace_back(std::move(fake));
}

// torch.add(1, 2): numbers come as real tensors, and what they make is a constant.
void answer_for_numbers(Call& call, const ModePtr& mode) {
  const size_t first = call.stack->size() - call.num_args();
  real_call(call);
  for (size_t i = first; i < call.stack->size(); ++i) {
    c10::IValue& value = (*call.stack)[i];
    if (value.isTensor() && value.toTensor().defined() && as_fake(value.toTensor()) == nullptr) {
      value = lift(value.toTensor(), mode, /*copy=*/false);
    }
  }
}

// Whether elements of its lists are on several devices: they are handled one by one then, for real too. A scalar beside
// the lists goes along with any device.
bool lists_several_devices(const Call& call) {
  const FakeTensorImpl* first = nullptr;
  for (const TensorArg& tensor : call.tensors()) {
    if (tensor.fake == nullptr || call.traits.args[tensor.arg].kind != ArgKind::kTensorList) {
      continue;
    }
    if (first != nullptr && tensor.fake->claimed_device() != first->claimed_device()) {
      return true;
    }
    first = tensor.fake;
  }
  return false;
}

void dispatch(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  Call call(op, OpTraits::of(op), keys, stack);
  if (C10_UNLIKELY(InKernel::active())) {
    return is_lift(call.traits) ? void() : nested_call(call);
  }
  // The mode belongs to an argument, as a rule: not to be used once the arguments are off the stack.
  const ModePtr* found = call.find_mode();
  const ModePtr& mode = found != nullptr ? *found : default_mode();
  if (C10_UNLIKELY(exclusive_modes_exist())) {
    refuse_other_modes(call);
  }
  if (C10_UNLIKELY(!call.has_fake())) {
    if (is_lift(call.traits)) {
      return lift_argument(call, mode);
    }
    if (has_numbers_alone(call)) {
      return answer_for_numbers(call, ModePtr(mode));
    }
    if (stays_real(call, mode)) {
      return real_call(call);
    }
  }
  if (C10_UNLIKELY(call.traits.is_composite) && must_decompose(op)) {
    return op.callBoxedForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd, *stack);
  }
  if (C10_UNLIKELY(call.traits.is_foreach) && lists_several_devices(call)) {
    return op.callBoxedForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd, *stack);
  }
  if (C10_UNLIKELY(is_recorded(*mode))) {
    return record(mode, call);
  }
  answer(call, mode);
}

// A failed internal check of PyTorch's asks the user to report a bug. Where every backend runs the kernel that failed, the
// real operator refuses these arguments too; where it is a meta kernel, only that kernel is known to.
void refuse_internal_assertion(const c10::OperatorHandle& op, const c10::Error& error) {
  constexpr std::string_view kMark = " INTERNAL ASSERT FAILED at ";
  const std::string message = error.what_without_backtrace();
  const size_t mark = message.find(kMark);
  if (mark == std::string::npos) {
    return;
  }
  const std::string name = c10::toString(op.operator_name());
  const std::string detail = "its kernel does not accept these arguments: the check `" + message.substr(0, mark) +
      "` failed in " + message.substr(mark + kMark.size());
  TORCH_CHECK(!find_composite_key(op), name, ": ", detail);
  raise(ErrorKind::kUnsupportedOperator, name, detail);
}

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  at_the_boundary([&] {
    try {
      dispatch(op, keys, stack);
    } catch (const FakeTensorError&) {
      throw;
    } catch (const c10::Error& error) {
      refuse_internal_assertion(op, error);
      throw;
    }
  });
}

// `x.data = y` asks this first, above the Fake key. PyTorch compares backends alone and would let a real tensor take a
// fake's storage.
bool has_compatible_shallow_copy_type(const at::Tensor& self, const at::Tensor& from) {
  if ((as_fake(self) != nullptr) != (as_fake(from) != nullptr)) {
    at_the_boundary([] {
      raise(
          ErrorKind::kRealTensor,
          "set_data",
          "`x.data = y` with one of them real and the other fake; convert the real one with torchfake.to_fake first.");
    });
  }
  return self.unsafeGetTensorImpl()->has_compatible_shallow_copy_type(from.key_set());
}

std::vector<torch::Library>& libraries() {
  static auto* libraries = new std::vector<torch::Library>();
  return *libraries;
}

// The fallback on the Fake key, and the guard of `x.data = y` on every key through which a dense tensor can reach it.
// See Note [Activation].
void install_fallback() {
  libraries().emplace_back(torch::Library::IMPL, "_", c10::DispatchKey::Fake, __FILE__, __LINE__);
  libraries().back().fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
  for (const c10::DispatchKey key : kDenseAutogradKeys) {
    libraries().emplace_back(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
    libraries().back().impl("_has_compatible_shallow_copy_type", TORCH_FN(has_compatible_shallow_copy_type));
  }
}

const RegisterChange g_fallback(Span::kOnceActive, {&install_fallback, [] { libraries().clear(); }});

}  // namespace

const c10::BoxedKernel& boxed_fallback() {
  static const c10::BoxedKernel kernel = c10::BoxedKernel::makeFromFunction<&fallback>();
  return kernel;
}

}  // namespace torchfake
