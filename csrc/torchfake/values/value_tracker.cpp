// Constant propagation: accompanies one call alongside its kernel.
#include <torchfake/values/value_tracker.h>

#include <torchfake/core/each_tensor.h>
#include <torchfake/core/fake_storage.h>
#include <torchfake/values/absorbing.h>
#include <torchfake/values/collective_counts.h>
#include <torchfake/values/collectives.h>
#include <torchfake/values/constants.h>
#include <torchfake/values/draws.h>
#include <torchfake/values/known_values.h>
#include <torchfake/values/repeated_values.h>

namespace torchfake {

namespace {

// Whether an out= argument is also an input. In the side run it is a separate tensor, so the wrong values would be
// read.
bool writes_over_its_inputs(const Call& call) {
  for (const TensorArg& out : call.tensors()) {
    if (!out.is_out) {
      continue;
    }
    for (const TensorArg& other : call.tensors()) {
      if (!other.is_out && storage_of(*out.impl) == storage_of(*other.impl)) {
        return true;
      }
    }
  }
  return false;
}

// Whether values are written. Batch norm in training updates its running statistics, which its schema does not declare.
// The flag argument of a check that is assumed to find nothing keeps its value.
bool is_written(const Call& call, const TensorArg& tensor, const FakeModeOptions& options) {
  if (call.traits.finds_nothing && options.assumes_valid && call.traits.args[tensor.arg].kind == ArgKind::kTensor) {
    return false;
  }
  if (tensor.is_written || !call.traits.args[tensor.arg].is_statistic) {
    return tensor.is_written;
  }
  const std::optional<int> training = call.op.schema().argumentIndexWithName("training");
  return !training || call.arg(*training).toBool();
}

// Whether an operator's outputs have known values without known inputs.
bool makes_values(const OpTraits& traits, const FakeModeOptions& options) {
  if (options.propagate_real_tensors) {
    return traits.values == ValueSource::kConstant || !traits.takes_tensors || traits.is_factory_like;
  }
  return traits.is_builtin && traits.values == ValueSource::kConstant && options.known_from_factories;
}

// Whether an operator's outputs are known if its inputs are. A user-defined operator may draw random numbers or have
// side effects outside the process, and nothing declares that: it is not run on the side.
bool passes_values_on(const OpTraits& traits, const FakeModeOptions& options) {
  if (options.propagate_real_tensors) {
    return true;
  }
  return traits.is_builtin && (traits.values == ValueSource::kInputs || traits.values == ValueSource::kOverwrite);
}

// Classes or positions that unknown indices choose from: `batch[order]`.
bool holds_known_integers(const TensorArg& tensor, int64_t limit) {
  return tensor.fake != nullptr && c10::isIntegralType(tensor.fake->dtype().toScalarType(), /*includeBool=*/false) &&
      is_known(*tensor.fake, limit);
}

}  // namespace

ValueTracker::ValueTracker(const Call& call, const ModeState& mode)
    : call_(call), mode_(mode), limit_(value_limit(mode.options)) {
  const OpTraits& traits = call.traits;
  if (traits.replaces_storage) {
    return;  // the values move with the storage
  }
  draws_ = draw_limit(traits, mode.options);
  bool any_known = false;
  bool all_known = true;
  bool any_repeated = false;
  bool any_ranged = false;
  bool outs_fit = true;
  for (const TensorArg& tensor : call.tensors()) {
    has_out_ |= tensor.is_out;
    outs_fit &= !tensor.is_out || tensor.impl->numel() <= limit_;
    draws_ = tensor.is_written && tensor.impl->numel() > draws_ ? 0 : draws_;
    const bool overwritten = tensor.is_out ||
        ((traits.values == ValueSource::kOverwrite || traits.values == ValueSource::kDrawn) && tensor.is_written);
    const bool known = tensor.fake != nullptr && is_known(*tensor.fake, limit_);
    const bool repeated = !known && tensor.fake != nullptr && is_repeated(*tensor.fake, limit_);
    // A write may also invalidate known values of other elements of the storage.
    any_known |= known || repeated ||
        (is_written(call, tensor, mode.options) && tensor.fake != nullptr && may_have_known_values(*tensor.fake));
    any_repeated |= repeated;
    any_ranged |= tensor.fake != nullptr && has_range(*tensor.fake);
    const bool unread = overwritten || traits.args[tensor.arg].is_unread;
    all_known &= known || repeated || unread || tensor.fake == nullptr;  // a real tensor here is a wrapped number
  }
  if (C10_UNLIKELY(!traits.is_builtin)) {
    for (const TensorArg& tensor : call.tensors()) {
      if (c10::StorageImpl* storage = storage_of(*tensor.impl)) {
        given_.push_back(c10::intrusive_ptr<c10::StorageImpl>::unsafe_reclaim_from_nonowning(storage));
      }
    }
  }
  if (C10_UNLIKELY(traits.is_collective)) {
    note_collective_arguments();
    return;  // contributions of other ranks are unknown, so nothing is computed
  }
  reads_known_ = any_known;
  const bool constant = makes_values(traits, mode.options);
  all_known = all_known || (C10_UNLIKELY(any_known) && limit_ > 1 && is_absorbed(call, limit_));
  const bool drawn = draws_ > 0 && (all_known || traits.takes_shape_only);
  inputs_known_ = limit_ > 0 && (constant || drawn || (all_known && passes_values_on(traits, mode.options)));
  // What is too large to be drawn has bounds.
  if (C10_UNLIKELY(traits.range != nullptr) && (!inputs_known_ || drawn) && !traits.mutates && !traits.is_view &&
      has_ranges(mode.options) &&
      (any_ranged || makes_range(*traits.range, call.tensors().empty() ? nullptr : call.tensors()[0].impl) ||
       (any_known && traits.range->any_size && holds_known_integers(call.tensors()[0], limit_)))) {
    ranges_ = ask_range(call);
  }
  if (C10_LIKELY(!any_known && !(inputs_known_ && (constant || drawn || traits.values == ValueSource::kOverwrite)))) {
    return;
  }
  if (traits.value_check != nullptr) {
    traits.value_check(call, limit_);
  }
  makes_constants_ = C10_UNLIKELY(mode.options.propagate_real_tensors) && reads_constants_alone();
  if (traits.mutates || traits.updates_statistics) {
    note_written();
  }
  // A view shares the values of its base, so there is nothing to compute.
  computes_ = inputs_known_ && outs_fit && (!traits.is_view || traits.mutates) && !writes_over_its_inputs(call) &&
      (mode.options.propagate_real_tensors || !traits.is_byte_product);
  if (any_repeated) {
    read_repetitions();
  }
}

void ValueTracker::note_collective_arguments() {
  count_collective(call_, mode_);
  for (size_t i = 0; i < call_.num_args(); ++i) {
    note_collective(call_.arg(i));
  }
  received_ = received_values(call_);
  for (const TensorArg& tensor : call_.tensors()) {
    if (tensor.is_written && tensor.fake != nullptr) {
      received_.push_back(c10::intrusive_ptr<c10::TensorImpl>::unsafe_reclaim_from_nonowning(tensor.impl));
    }
  }
}

void ValueTracker::note_written() {
  for (const TensorArg& tensor : call_.tensors()) {
    if (is_written(call_, tensor, mode_.options) && tensor.fake != nullptr) {
      written_.push_back(
          {c10::intrusive_ptr<c10::TensorImpl>::unsafe_reclaim_from_nonowning(tensor.impl),
           at::Tensor(),
           tensor.arg,
           false,
           false});
    }
  }
}

void ValueTracker::keep_arguments() {
  if (computes_ && real_.empty()) {
    real_ = real_arguments();
  }
}

bool ValueTracker::reads_constants_alone() const {
  const ValueSource source = call_.traits.values;
  bool any = false;
  for (const TensorArg& tensor : call_.tensors()) {
    any |= tensor.fake != nullptr;
    if (tensor.fake != nullptr && !is_constant(*tensor.fake)) {
      return false;
    }
  }
  return any && call_.traits.is_builtin && (source == ValueSource::kInputs || source == ValueSource::kOverwrite);
}

// See mark_as_constant.
void ValueTracker::finish_constants(const Call& call) const {
  for (const Written& written : written_) {
    if (c10::StorageImpl* storage = makes_constants_ ? nullptr : storage_of(*written.fake)) {
      write_constants(storage);
    }
  }
  if (!makes_constants_) {
    return;
  }
  for_each_tensor(outputs_of(call), [&](const at::Tensor& tensor) {
    const FakeTensorImpl* fake = tensor.defined() ? as_fake(tensor) : nullptr;
    if (fake != nullptr && fake->numel() <= mode_.options.known_values) {
      mark_as_constant(*fake);
    }
  });
}

// Decides how to handle a call that reads repeated values.
void ValueTracker::read_repetitions() {
  bool large = false;
  for (const TensorArg& tensor : call_.tensors()) {
    large |= tensor.impl->numel() > limit_;
    if (tensor.is_written || !is_readable(tensor.impl->numel(), limit_)) {
      inputs_known_ = computes_ = false;
    }
  }
  keep_arguments();
  repeats_ = computes_ && large && call_.traits.is_pointwise && take_one_repetition(real_, limit_);
  computes_ &= !repeats_;
}

void ValueTracker::finish_repetitions(const Call& call, c10::Device device) {
  const FakeTensorImpl* fake = only_output(call);
  if (fake == nullptr || !run_aside(call, device)) {
    return;
  }
  const at::Tensor small = real_.back().toTensor();
  if (small.dim() == fake->dim() && small.dtype() == fake->dtype()) {
    make_repeated(*fake, small);
  }
}

void ValueTracker::forget_received() const {
  for (const c10::intrusive_ptr<c10::TensorImpl>& tensor : received_) {
    if (c10::StorageImpl* storage = storage_of(*tensor)) {
      forget_known_bytes(storage);
    }
  }
}

// The outputs of a user-defined operator are its inputs, or tensors created by a function that only knows sizes: the
// zeros of its torch.zeros are not the result of the real operator.
void ValueTracker::forget_made(const Call& call) const {
  for_each_tensor(outputs_of(call), [&](const at::Tensor& tensor) {
    const FakeTensorImpl* fake = tensor.defined() ? as_fake(tensor) : nullptr;
    c10::StorageImpl* storage = fake == nullptr ? nullptr : storage_of(*fake);
    const auto shares = [&](const c10::intrusive_ptr<c10::StorageImpl>& given) { return given.get() == storage; };
    if (storage != nullptr && std::none_of(given_.begin(), given_.end(), shares)) {
      forget_known_bytes(storage);
    }
  });
}

void ValueTracker::finish(const Call& call, c10::Device device) {
  if (call.traits.values == ValueSource::kUninitialised && limit_ > 0 && mode_.options.known_from_factories &&
      !mode_.options.propagate_real_tensors) {
    for_each_tensor(outputs_of(call), [](const at::Tensor& tensor) {
      const FakeTensorImpl* fake = tensor.defined() ? as_fake(tensor) : nullptr;
      if (fake != nullptr && fake->numel() > 0 && fake->numel() <= kPartialLimit && fills_storage(*fake)) {
        expect_values(*fake);
      }
    });
  }
  if (C10_UNLIKELY(!call.traits.is_builtin)) {
    forget_made(call);
  }
  if (C10_UNLIKELY(call.traits.is_collective)) {
    for (const c10::IValue& output : outputs_of(call)) {
      note_collective(output);
    }
    return forget_received();
  }
  for (const Written& written : written_) {
    if (c10::StorageImpl* storage = storage_of(*written.fake)) {
      note_resize(storage);
    }
  }
  if (C10_UNLIKELY(mode_.options.propagate_real_tensors)) {
    finish_constants(call);
  }
  if (repeats_) {
    return finish_repetitions(call, device);
  }
  // A meta tensor has no real values to propagate.
  const bool has_no_real = mode_.options.propagate_real_tensors && device.is_meta();
  if (!computes_ || has_no_real || !outputs_fit(call)) {
    forget_written();
    if (C10_UNLIKELY(ranges_.has_value())) {
      finish_ranges(call, *ranges_);
    }
    return;
  }
  if (run_aside(call, device)) {
    finish_written(real_, call);
  }
}

}  // namespace torchfake
