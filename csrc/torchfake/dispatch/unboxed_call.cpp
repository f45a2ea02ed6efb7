// Cache hits of unboxed calls: handled directly from the C++ arguments.
#include <torchfake/dispatch/unboxed_call.h>

#include <c10/core/UndefinedTensorImpl.h>

#include <torchfake/cache/shape_cache.h>
#include <torchfake/cache/side_allocations.h>
#include <torchfake/core/activation.h>
#include <torchfake/core/symbolic_bytes.h>
#include <torchfake/dispatch/allocating_call.h>
#include <torchfake/values/deriving.h>
#include <torchfake/values/known_values.h>
#include <torchfake/values/value_ranges.h>

#include <bit>

namespace torchfake {

// A view shares the values of its base, and a factory creates its own. Only operators that read or write values depend
// on known ones.
UnboxedCall::UnboxedCall(const OpTraits& traits)
    : traits_(traits),
      depends_on_known_values_(
          traits.mutates ||
          (!traits.is_view &&
           (traits.values == ValueSource::kInputs || traits.values == ValueSource::kOverwrite ||
            traits.values == ValueSource::kDrawn))) {
  key_.add_op(traits);
}

bool UnboxedCall::possible(const OpTraits& traits) {
  return traits.is_keyed && shape_cache::hits_complete_calls() && CallContext::current() == nullptr;
}

// Whether known values of the arguments may affect the call. For an argument that is overwritten as a whole, `find`
// decides. If any other argument that is read is unknown, so is the result: the weights of a small layer are drawn, and
// known, but its input is not. See ValueTracker.
bool UnboxedCall::values_take_part() const {
  if (C10_LIKELY(!may_be_known_)) {
    return false;
  }
  bool any_known = false;
  bool any_unknown = false;
  bool all_whole = true;
  const bool trains = any_flag_ || !has_flag_;  // at least if its only flag, `training`, is true
  for (const TensorArg& tensor : tensors_) {
    if (tensor.fake == nullptr) {
      continue;
    }
    const ArgTraits& facts = traits_.args[tensor.arg];
    all_whole &= c10::isIntegralType(tensor.impl->dtype().toScalarType(), /*includeBool=*/true);
    if (facts.is_written || (facts.is_statistic && trains)) {
      if (traits_.values != ValueSource::kOverwrite && may_have_known_values(*tensor.fake)) {
        return true;
      }
    } else if (may_have_readable_values(*tensor.fake)) {
      any_known = true;
    } else {
      any_unknown |= !facts.is_unread;
    }
  }
  const bool may_absorb = all_whole && tensors_.size() == 2;  // see Note [Absorbing operands]
  return any_known &&
      (!any_unknown || may_absorb || traits_.values != ValueSource::kInputs || traits_.value_check != nullptr);
}

void UnboxedCall::add_tensor(const ArgTraits& facts, c10::TensorImpl* tensor) {
  if (C10_UNLIKELY(tensor == c10::UndefinedTensorImpl::singleton())) {
    key_.add_undefined();
    return;
  }
  FakeTensorImpl* fake = as_fake(tensor);
  const auto arg = static_cast<uint16_t>(&facts - traits_.args.begin());
  tensors_.push_back({tensor, fake, arg, 0, facts.is_written, facts.is_out});
  if (C10_LIKELY(
          fake != nullptr && fake->has_plain_geometry() && !(traits_.reads_storage && has_symbolic_bytes(*fake)))) {
    if (mode_ == nullptr) {
      mode_ = &fake->mode();
    } else {
      one_mode_ &= mode_->get() == fake->mode().get();
    }
    has_source_ |= !facts.is_written;
    may_be_known_ |= depends_on_known_values_ && may_have_known_values(*fake);
    key_.add_plain_fake(traits_, *fake);
  } else if (fake == nullptr && tensor->is_wrapped_number()) {
    key_.add_tensor(traits_, tensors_.back());
  } else {
    possible_ = false;
  }
}

void UnboxedCall::add(const ArgTraits& facts, const at::Tensor& tensor) {
  add_tensor(facts, tensor.unsafeGetTensorImpl());
}

void UnboxedCall::add(const ArgTraits& facts, const std::optional<at::Tensor>& tensor) {
  tensor.has_value() ? add_tensor(facts, tensor->unsafeGetTensorImpl()) : key_.add_none();
}

void UnboxedCall::add(const ArgTraits& facts, at::TensorList tensors) {
  key_.add_list(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    add_tensor(facts, tensor.unsafeGetTensorImpl());
    possible_ &= tensors_.empty() || tensors_.back().fake != nullptr;  // a number in a list: not part of keys
  }
}

void UnboxedCall::add(const ArgTraits& facts, const at::ITensorListRef& tensors) {
  key_.add_list(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    add_tensor(facts, tensor.unsafeGetTensorImpl());
    possible_ &= tensors_.empty() || tensors_.back().fake != nullptr;
  }
}

void UnboxedCall::add(const ArgTraits& facts, const c10::List<std::optional<at::Tensor>>& tensors) {
  key_.add_list(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::optional<at::Tensor> tensor = tensors.get(i);  // the list keeps it alive as well
    if (!tensor.has_value() || !tensor->defined()) {
      key_.add_undefined();
      continue;
    }
    add_tensor(facts, tensor->unsafeGetTensorImpl());
    possible_ &=
        !tensors_.empty() && tensors_.back().fake != nullptr && !(traits_.is_index && is_mask(tensor->scalar_type()));
  }
}

void UnboxedCall::add(const ArgTraits& facts, const at::Scalar& value) {
  if (C10_UNLIKELY(value.isSymbolic())) {
    possible_ = false;
    return;
  }
  if (value.isBoolean()) {
    key_.add_bool(value.toBool());
  } else if (value.isComplex()) {
    key_.add_complex(value.toComplexDouble());
  } else if (value.isFloatingPoint()) {
    add(facts, value.toDouble());
  } else if (value.isIntegral(/*includeBool=*/false) && value.type() == c10::kLong) {
    add(facts, value.toLong());
  } else {
    possible_ = false;  // unsigned and too large for an IValue's integer
  }
}

void UnboxedCall::add(const ArgTraits& facts, at::ArrayRef<at::Scalar> values) {
  key_.add_list(values.size());
  for (const at::Scalar& value : values) {
    add(facts, value);
  }
}

void UnboxedCall::add(const ArgTraits& /*facts*/, bool value) {
  has_flag_ = true;
  any_flag_ |= value;
  key_.add_bool(value);
}

void UnboxedCall::add_factor(bool is_int, uint64_t bits) {
  key_.add_factor(is_int);
  factors_.push_back(bits);
}

void UnboxedCall::add(const ArgTraits& facts, int64_t value) {
  facts.scales_only ? add_factor(/*is_int=*/true, static_cast<uint64_t>(value)) : key_.add_int(value);
}

void UnboxedCall::add(const ArgTraits& facts, double value) {
  facts.scales_only ? add_factor(/*is_int=*/false, std::bit_cast<uint64_t>(value)) : key_.add_double(value);
}

void UnboxedCall::add(const ArgTraits& facts, const c10::SymInt& value) {
  if (C10_UNLIKELY(value.is_heap_allocated())) {
    possible_ = false;
    return;
  }
  add(facts, value.as_int_unchecked());
}

void UnboxedCall::add(const ArgTraits& facts, at::IntArrayRef values) {
  key_.add_int_list(values);
}

void UnboxedCall::add(const ArgTraits& facts, c10::SymIntArrayRef values) {
  for (const c10::SymInt& value : values) {
    if (C10_UNLIKELY(value.is_heap_allocated())) {
      possible_ = false;
      return;
    }
  }
  // A SymInt that holds a number has the bits of that number; PyTorch's own asIntArrayRefUnchecked relies on this.
  key_.add_int_list(c10::IntArrayRef(reinterpret_cast<const int64_t*>(values.data()), values.size()));
}

void UnboxedCall::add(const ArgTraits& facts, at::OptionalIntArrayRef values) {
  values.has_value() ? add(facts, *values) : key_.add_none();
}

void UnboxedCall::add(const ArgTraits& facts, at::OptionalSymIntArrayRef values) {
  values.has_value() ? add(facts, *values) : key_.add_none();
}

void UnboxedCall::add(const ArgTraits& facts, at::ArrayRef<double> values) {
  key_.add_list(values.size());
  for (const double value : values) {
    add(facts, value);
  }
}

void UnboxedCall::add(const ArgTraits& facts, c10::string_view text) {
  key_.add_string(std::string_view(text.data(), text.size()));
}

void UnboxedCall::add(const ArgTraits& facts, c10::Device device) {
  key_.add_device(device);
}

void UnboxedCall::add(const ArgTraits& facts, const at::Generator& generator) {
  key_.add_generator(generator);
}

// Whether unknown values of an argument affect the result.
bool UnboxedCall::has_read_source() const {
  return has_source_ && !traits_.takes_shape_only;
}

// Whether the fallback would derive bounds for the results, although no argument of the call has bounds.
bool UnboxedCall::bounds_follow(const CacheEntry& entry) const {
  return C10_UNLIKELY(traits_.range != nullptr) &&
      may_carry_range(*traits_.range, entry.largest_output, traits_.range->source == RangeSource::kAlways) &&
      has_ranges((*mode_)->options) && makes_range(*traits_.range, tensors_.empty() ? nullptr : tensors_.front().impl);
}

// Whether the fallback would compute values for the results, although no argument of the call is known. See
// ValueTracker.
bool UnboxedCall::values_follow(const CacheEntry& entry) const {
  const FakeModeOptions& options = (*mode_)->options;
  switch (traits_.values) {
    case ValueSource::kInputs:
    case ValueSource::kNone:
      return bounds_follow(entry);
    case ValueSource::kConstant:
      return options.known_from_factories && entry.largest_output <= options.known_values;
    case ValueSource::kOverwrite:
      return !has_source_ && tensors_.front().impl->numel() <= options.known_values;
    case ValueSource::kDrawn:
      return bounds_follow(entry) ||
          (!has_read_source() && options.known_values > 0 &&
           (traits_.mutates ? tensors_.front().impl->numel() : entry.largest_output) <= options.drawn_values);
    case ValueSource::kUninitialised:
      return options.known_from_factories && options.known_values > 0 && entry.largest_output > 0 &&
          entry.largest_output <= kPartialLimit;
  }
  return true;
}

// Whether the mode needs nothing but the cached outcome.
bool UnboxedCall::mode_agrees() const {
  if (mode_ == nullptr || !*mode_) {
    return false;
  }
  const FakeModeOptions& options = (*mode_)->options;
  if (!(*mode_)->cache.is_on() || options.recorder || options.propagate_real_tensors) {
    return false;
  }
  if (C10_UNLIKELY(hits_need_checks())) {
    if (scope_is_recorded()) {
      return false;
    }
    if (tensors_.empty() && is_kept_out(**mode_)) {
      return false;
    }
    const ModePtr* current = find_current_mode();
    return one_mode_ && (current == nullptr || !*current || current->get() == mode_->get());
  }
  return true;
}

// Whether the fallback would derive the same values for this call.
bool UnboxedCall::holds_for(const DerivedValues& derived) const {
  switch (traits_.values) {
    case ValueSource::kConstant:
      return true;
    case ValueSource::kOverwrite:
      return is_covered_by(*tensors_.front().fake, *derived.outputs[0].bytes);
    default:
      return fits_mode(derived, (*mode_)->options) && has_sources(derived, tensors_, factors_);
  }
}

const CacheEntry* UnboxedCall::find() {
  if (mode_ == nullptr && !traits_.takes_tensors) {
    mode_ = find_current_mode();  // a factory called in the mode
  }
  if (C10_UNLIKELY(!possible_ || !mode_agrees())) {
    return nullptr;
  }
  const bool reads_values = values_take_part();
  if (C10_UNLIKELY(reads_values && (traits_.mutates || traits_.values != ValueSource::kInputs))) {
    return nullptr;
  }
  key_.add_aliases(traits_, tensors_);
  key_.add_settings(traits_, **mode_);
  key_.finish();
  const CacheEntry* entry = shape_cache::peek(key_);
  if (entry == nullptr || entry->error != nullptr) {
    return nullptr;
  }
  if (C10_UNLIKELY(!entry->allocations.empty()) && (*mode_)->options.storage_observer != nullptr &&
      name_outputs(entry->allocations)) {
    return nullptr;  // see Note [Order of allocations]
  }
  if (C10_UNLIKELY(reads_values || values_follow(*entry))) {
    derived_ = entry->values.load(std::memory_order_acquire);
    while (derived_ != nullptr && !holds_for(*derived_)) {
      derived_ = derived_->next.load(std::memory_order_acquire);
    }
    if (derived_ == nullptr) {
      return nullptr;
    }
  } else if (C10_UNLIKELY(traits_.values == ValueSource::kOverwrite && may_have_known_values(*tensors_.front().fake))) {
    return nullptr;  // known values are overwritten
  }
  shape_cache::count_hit(*entry);
  return entry;
}

at::Tensor UnboxedCall::make(const OutputRecipe& recipe) {
  if (C10_LIKELY(!reports_storages(**mode_))) {
    return make_output(recipe, tensors_, *mode_);
  }
  const AllocatingCall allocating(traits_, tensors_, **mode_);
  return make_output(recipe, tensors_, *mode_);
}

at::Tensor UnboxedCall::next_tensor(const CacheEntry& entry) {
  ++next_return_;
  const size_t index = next_output_++;
  at::Tensor output = make(entry.outputs[index]);
  if (C10_UNLIKELY(derived_ != nullptr) && index < derived_->outputs.size()) {
    give_values(*as_fake(output), derived_->outputs[index]);
  }
  return output;
}

std::vector<at::Tensor> UnboxedCall::next_list(const CacheEntry& entry) {
  std::vector<at::Tensor> list;
  const int32_t size = entry.returns[next_return_++];
  list.reserve(size);
  for (int32_t i = 0; i < size; ++i) {
    list.push_back(make(entry.outputs[next_output_++]));
  }
  return list;
}

void UnboxedCall::finish(const CacheEntry& entry) {
  if (has_effects(entry)) {
    const AllocatingCall allocating(traits_, tensors_, **mode_);
    announce_and_apply(entry, tensors_, *mode_);
  }
  if (C10_UNLIKELY(derived_ != nullptr && traits_.values == ValueSource::kOverwrite)) {
    overwrite_with(*tensors_.front().fake, *derived_->outputs[0].bytes);
  }
}

namespace {

std::vector<c10::RegistrationHandleRAII>& registrations() {
  static auto* registrations = new std::vector<c10::RegistrationHandleRAII>();
  return *registrations;
}

void register_unboxed(const UnboxedOperator& op) {
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  const c10::OperatorName name(op.name, op.overload);
  const std::optional<c10::OperatorHandle> handle = dispatcher.findSchema(name);
  if (!handle.has_value()) {
    return;  // a build of PyTorch without this operator
  }
  registrations().push_back(dispatcher.registerImpl(
      name, c10::DispatchKey::Fake, op.kernel(*handle), std::nullopt, nullptr, "torchfake: " __FILE__));
}

// See Note [Activation].
const RegisterChange g_unboxed_kernels(
    Span::kOnceActive,
    {[] { for_each_unboxed_operator(&register_unboxed); }, [] { registrations().clear(); }});

}  // namespace

}  // namespace torchfake
