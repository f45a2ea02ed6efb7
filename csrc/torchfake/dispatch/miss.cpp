// A cache miss: device, refusals, rule, kernel, outputs.
#include <torchfake/dispatch/miss.h>

#include <torchfake/cache/side_allocations.h>
#include <torchfake/core/call_context.h>
#include <torchfake/core/errors.h>
#include <torchfake/dispatch/device_rule.h>
#include <torchfake/dispatch/known_answers.h>
#include <torchfake/dispatch/meta_call.h>
#include <torchfake/dispatch/refusals.h>
#include <torchfake/dispatch/wrap_outputs.h>
#include <torchfake/dispatch/zeros_call.h>
#include <torchfake/memory/operator_memory.h>
#include <torchfake/values/stand_in_answers.h>
#include <torchfake/values/value_tracker.h>

namespace torchfake {

namespace {

// An input may have been resized, or given a storage created elsewhere (`x.set_(storage)` in torch.load).
void adopt_changes(const Inputs& inputs, const ModePtr& mode) {
  inputs.for_each_fake([&](const FakeTensorImpl& fake) {
    if (fake.has_storage()) {
      note_resize(fake.unsafe_storage().unsafeGetStorageImpl());
      adopt_storage(fake.unsafe_storage(), fake.claimed_device(), mode->options.storage_observer);
    }
  });
}

// The geometry of the arguments that a call may change, restored if memory for the new one is refused.
class GeometryBackup {
 public:
  explicit GeometryBackup(const Call& call) {
    for (const TensorArg& tensor : call.tensors()) {
      if (tensor.is_written && tensor.fake != nullptr) {
        before_.emplace_back(
            c10::intrusive_ptr<c10::TensorImpl>::unsafe_reclaim_from_nonowning(tensor.impl), Geometry(*tensor.impl));
      }
    }
  }

  void restore() const {
    for (const auto& [tensor, geometry] : before_) {
      tensor->set_sizes_and_strides(geometry.sizes, geometry.strides, geometry.storage_offset);
      if (c10::StorageImpl* storage = storage_of(*tensor); storage != nullptr && storage->nbytes() != geometry.nbytes) {
        resize_storage(storage, geometry.nbytes);
      }
    }
  }

 private:
  c10::SmallVector<std::pair<c10::intrusive_ptr<c10::TensorImpl>, Geometry>, 2> before_;
};

// Runs a user-defined operator that has a fake implementation.
c10::Device run_fake_impl(Call& call, const ModePtr& mode) {
  const bool has_fakes = !call.tensors().empty() && call.tensors().front().fake != nullptr;
  const c10::Device device = has_fakes ? call.tensors().front().fake->claimed_device() : c10::Device(c10::kCPU);
  const Inputs inputs(call);
  fake_impl_call(call, mode);
  wrap_outputs(call, inputs, device, mode);
  return device;
}

bool handled_by_rule(Call& call, const ModePtr& mode) {
  return call.traits.rule != nullptr && call.traits.rule(call, mode) == RuleResult::kAnswered;
}

// Whether the outcome depends on values that no kernel on metadata can compute it without.
bool depends_on_data(const OpTraits& traits) {
  return (traits.data_dependent || traits.dynamic_shape) && !traits.takes_masks;
}

// Returns whether the call has been handled. Throws if values are unknown and every kernel needs them.
bool handled_by_values(Call& call, const ValueTracker& values, c10::Device device, const ModePtr& mode) {
  const bool cpu_decides = device.is_cpu() || !call.traits.differs_from_cpu;
  if (values.inputs_known() && cpu_decides) {
    answer_from_values(call, values, device, mode);
    return true;
  }
  if (call.traits.kernel != nullptr) {
    return false;
  }
  if (handled_by_rule(call, mode)) {
    return true;
  }
  if (!stands_in(mode, call.op_name(), "the result for ones")) {
    refuse_unknown_values(call);
  }
  const Inputs inputs(call);
  trial_call(call, *mode, /*fill=*/1);
  wrap_outputs(call, inputs, device, mode);
  return true;
}

// Sizes must be numbers: C++ kernels and rules read integers.
void refuse_symbols(const Call& call) {
  for (size_t i = 0; i < call.num_args(); ++i) {
    if (call.arg(i).isSymInt() || call.arg(i).isSymIntList()) {
      raise(
          ErrorKind::kUnsupportedOperator,
          call.op_name(),
          c10::str(
              "argument '",
              call.op.schema().arguments()[i].name(),
              "' is symbolic, and symbolic sizes are not supported yet; pass a number."));
    }
  }
}

// Returns the device that fresh outputs claim.
c10::Device run(Call& call, const ValueTracker& values, const ModePtr& mode) {
  if (C10_UNLIKELY(has_fake_impl(call))) {
    return run_fake_impl(call, mode);
  }
  refuse_symbols(call);
  const c10::Device device = device_rule(call, *mode);
  check_refusals(call, device);
  if (depends_on_data(call.traits) && handled_by_values(call, values, device, mode)) {
    return device;
  }
  const Inputs inputs(call);
  const auto compute = [&] {
    if (!handled_by_rule(call, mode)) {
      has_meta_kernel(call) ? meta_call(call, device) : zeros_call(call, device, *mode);
    }
    wrap_outputs(call, inputs, device, mode);
  };
  if (C10_LIKELY(!call.traits.changes_geometry)) {
    compute();
    return device;
  }
  const StorageObserver* observer = mode->options.storage_observer.get();
  const bool may_refuse = observer != nullptr && observer->counts() == nullptr;
  const std::optional<GeometryBackup> backup =
      may_refuse ? std::optional<GeometryBackup>(std::in_place, call) : std::nullopt;
  try {
    compute();
    adopt_changes(inputs, mode);
  } catch (...) {
    if (backup) {
      backup->restore();
    }
    throw;
  }
  return device;
}

// The results on the stack; the arguments are gone.
c10::ArrayRef<c10::IValue> returned(const Call& call) {
  const size_t count = call.op.schema().returns().size();
  const torch::jit::Stack& stack = *call.stack;
  return c10::ArrayRef<c10::IValue>(stack).slice(stack.size() - count);
}

bool all_empty(const Call& call) {
  return std::all_of(
      call.tensors().begin(), call.tensors().end(), [](const TensorArg& tensor) { return tensor.impl->numel() == 0; });
}

}  // namespace

std::vector<SideAllocation> side_allocations(const Call& call) {
  if (call.tensors().empty() || call.tensors().front().fake == nullptr) {
    return {};
  }
  const c10::Device device = call.tensors().front().fake->claimed_device();
  if (!device.is_cuda()) {
    return {};
  }
  const memory::RequestsOf requests_of = memory::operator_memory(call.traits.qualified_name()).requests;
  if (requests_of == nullptr) {
    return {};
  }
  memory::Requests requests;
  requests_of(call, requests);
  std::vector<SideAllocation> found;
  for (const memory::Requests::Step& step : requests.steps()) {
    const size_t nbytes = step.kind == memory::Requests::Step::Kind::kTake ? step.nbytes : 0;
    found.push_back({device, nbytes, static_cast<SideAllocation::Kind>(step.kind), step.number});
  }
  return found;
}

// If all tensors are empty, all values are known and the real operator runs alongside the kernel; an error that it
// throws depends on the key only, and is stored as the outcome.
void run_and_remember(Call& call, ValueTracker& values, const ModePtr& mode, CacheKey& key, const CacheEntry* found) {
  const CacheEntryPtr known =
      found == nullptr ? CacheEntryPtr() : CacheEntryPtr::unsafe_reclaim_from_nonowning(const_cast<CacheEntry*>(found));
  const bool values_follow_from_key = all_empty(call);
  const OutcomeRecorder recorder(call);
  std::vector<SideAllocation> allocations = side_allocations(call);
  CallContext context;
  c10::Device device(c10::kCPU);
  const auto complete_key = [&] {
    if (C10_UNLIKELY((context.settings & ~key.settings()) != 0)) {
      call.traits.settings.fetch_or(context.settings, std::memory_order_relaxed);
      key.add_more_settings(context.settings);
    }
  };
  const auto remember = [&](CacheEntryPtr outcome) {
    if (known && !known->same_as(*outcome)) {
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
    const OrderedOutputs ordered(allocations, mode);
    device = run(call, values, mode);
    announce_allocations(allocations, returned(call), mode);
    complete_key();
    Bypass reason = context.is_unkeyed ? Bypass::kDataDependent : Bypass::kNone;
    CacheEntryPtr outcome = reason == Bypass::kNone ? recorder.outcome(call, key, device, reason) : CacheEntryPtr();
    if (values_follow_from_key) {
      values.finish(call, device);
    }
    if (outcome) {
      outcome->allocations = std::move(allocations);
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
    values.finish(call, device);
  }
}

c10::Device run_without_key(Call& call, const ValueTracker& values, const ModePtr& mode, Bypass reason) {
  shape_cache::count_bypass(reason);
  CallContext context;
  // Whatever an enclosing call derives from this one is not part of its key either.
  context.is_unkeyed = reason == Bypass::kDataDependent || reason == Bypass::kNotBuiltin || call.traits.needs_values;
  const std::vector<SideAllocation> allocations = side_allocations(call);
  const OrderedOutputs ordered(allocations, mode);
  const c10::Device device = run(call, values, mode);
  announce_allocations(allocations, returned(call), mode);
  return device;
}

}  // namespace torchfake
