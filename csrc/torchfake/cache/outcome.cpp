// Outcomes of calls: recorded after a miss, replayed on a hit.
#include <torchfake/cache/outcome.h>

#include <ATen/core/List.h>

#include <torchfake/cache/side_allocations.h>
#include <torchfake/core/pytorch_errors.h>

namespace torchfake {

CacheEntry::~CacheEntry() {
  DerivedValues::release(values.load(std::memory_order_relaxed));
}

size_t CacheEntry::bytes() const {
  size_t derived = 0;
  for (const auto* each = values.load(std::memory_order_relaxed); each != nullptr;
       each = each->next.load(std::memory_order_relaxed)) {
    derived += each->nbytes();
  }
  return sizeof(CacheEntry) + key.size() * sizeof(uint64_t) + outputs.size() * sizeof(OutputRecipe) +
      changes.capacity() * sizeof(InputChange) + allocations.capacity() * sizeof(SideAllocation) +
      (error == nullptr ? 0 : sizeof(ErrorOutcome) + error->message.capacity()) + derived;
}

bool OutputRecipe::operator==(const OutputRecipe& other) const {
  if (kind != other.kind || (kind == Kind::kView || kind == Kind::kInput ? input != other.input : false)) {
    return false;
  }
  if (kind == Kind::kConstant) {
    return constant == other.constant;
  }
  return device == other.device && keys == other.keys && dtype == other.dtype && geometry == other.geometry &&
      nbytes == other.nbytes && is_wrapped_number == other.is_wrapped_number && version == other.version;
}

bool Outcome::same_as(const Outcome& other) const {
  if ((error == nullptr) != (other.error == nullptr)) {
    return false;
  }
  if (error != nullptr && (error->type != other.error->type || error->kind != other.error->kind)) {
    return false;
  }
  return outputs == other.outputs && returns == other.returns && changes == other.changes &&
      allocations == other.allocations;
}

namespace {

// Above this number of inputs they are looked up in a table.
constexpr size_t kFew = 16;

uint32_t version_of(const c10::TensorImpl& tensor) {
  return tensor.version_counter().enabled() ? tensor.version_counter().current_version() : 0;
}

}  // namespace

OutcomeRecorder::OutcomeRecorder(const Call& call) {
  for (const TensorArg& tensor : call.tensors()) {
    Before before;
    before.tensor = c10::intrusive_ptr<c10::TensorImpl>::unsafe_reclaim_from_nonowning(tensor.impl);
    before.storage = storage_of(*tensor.impl);
    before.is_written = tensor.is_written;
    if (tensor.is_written) {
      before.geometry = Geometry(*tensor.impl);
      before.version = version_of(*tensor.impl);
      before.keys = tensor.impl->key_set();
    }
    inputs_.push_back(std::move(before));
  }
  if (inputs_.size() > kFew) {
    for (size_t i = 0; i < inputs_.size(); ++i) {
      index_.emplace(inputs_[i].tensor.get(), static_cast<uint32_t>(i));
      if (inputs_[i].storage != nullptr) {
        index_.emplace(inputs_[i].storage, static_cast<uint32_t>(i));
      }
    }
  }
}

std::optional<uint32_t> OutcomeRecorder::input_that_is(const c10::TensorImpl& output) const {
  if (inputs_.size() > kFew) {
    const auto found = index_.find(&output);
    return found == index_.end() ? std::nullopt : std::optional<uint32_t>(found->second);
  }
  for (size_t i = 0; i < inputs_.size(); ++i) {
    if (inputs_[i].tensor.get() == &output) {
      return static_cast<uint32_t>(i);
    }
  }
  return std::nullopt;
}

std::optional<uint32_t> OutcomeRecorder::input_sharing(const c10::StorageImpl* storage) const {
  if (storage == nullptr) {
    return std::nullopt;
  }
  if (inputs_.size() > kFew) {
    const auto found = index_.find(storage);
    return found == index_.end() ? std::nullopt : std::optional<uint32_t>(found->second);
  }
  for (size_t i = 0; i < inputs_.size(); ++i) {
    if (inputs_[i].storage == storage) {
      return static_cast<uint32_t>(i);
    }
  }
  return std::nullopt;
}

OutputRecipe OutcomeRecorder::recipe(const at::Tensor& output) const {
  OutputRecipe recipe;
  if (!output.defined()) {
    recipe.kind = OutputRecipe::Kind::kUndefined;
    return recipe;
  }
  const c10::TensorImpl& impl = *output.unsafeGetTensorImpl();
  recipe.kind = OutputRecipe::Kind::kFresh;
  if (const std::optional<uint32_t> input = input_that_is(impl)) {
    recipe.kind = OutputRecipe::Kind::kInput;
    recipe.input = *input;
    return recipe;
  }
  if (const std::optional<uint32_t> input = input_sharing(storage_of(impl))) {
    recipe.kind = OutputRecipe::Kind::kView;
    recipe.input = *input;
  }
  recipe.keys = impl.key_set();
  recipe.device = output.device();
  recipe.dtype = impl.dtype();
  if (const FakeTensorImpl* fake = as_fake(&impl); fake != nullptr && fake->has_plain_geometry()) {
    recipe.geometry = fake->geometry();
  }
  recipe.nbytes = impl.has_storage() ? bytes_now(*impl.unsafe_storage().unsafeGetStorageImpl()) : 0;
  recipe.is_wrapped_number = impl.is_wrapped_number();
  recipe.version = recipe.kind == OutputRecipe::Kind::kFresh ? version_of(impl) : 0;
  return recipe;
}

bool OutcomeRecorder::record_changes(const Call& call, CacheEntry& entry) const {
  for (size_t i = 0; i < inputs_.size(); ++i) {
    const Before& before = inputs_[i];
    const c10::TensorImpl& now = *before.tensor;
    if (!before.is_written) {
      continue;
    }
    if (storage_of(now) != before.storage || now.key_set() != before.keys) {
      return false;
    }
    // Views share a version counter with their base: counted once.
    const uint32_t counted_up = version_of(now) - before.version;
    const bool counted = counted_up > 0 &&
        std::any_of(inputs_.begin(), inputs_.begin() + static_cast<ptrdiff_t>(i), [&](const Before& b) {
                           return b.is_written && b.storage == before.storage;
                         });
    const uint32_t version_bumps = counted ? 0 : counted_up;
    Geometry geometry(now);
    const bool moved = geometry != before.geometry;
    if (moved && !call.traits.reads_storage) {
      return false;  // the key does not contain the input's position in its storage
    }
    if (moved || version_bumps > 0) {
      entry.changes.push_back(
          {static_cast<uint32_t>(i), version_bumps, moved ? std::optional(std::move(geometry)) : std::nullopt});
    }
  }
  return true;
}

CacheEntryPtr OutcomeRecorder::outcome(const Call& call, const CacheKey& key, c10::Device device, Bypass& reason)
    const {
  auto entry = c10::make_intrusive<CacheEntry>();
  entry->key.assign(key.words().begin(), key.words().end());
  entry->hash = key.hash();
  entry->device = device;
  if (!record_changes(call, *entry)) {
    reason = Bypass::kReplacedStorage;
    return CacheEntryPtr();
  }
  c10::SmallVector<const c10::StorageImpl*, 4> fresh;
  const auto add = [&](const at::Tensor& tensor) {
    entry->outputs.push_back(recipe(tensor));
    const OutputRecipe& added = entry->outputs.back();
    if (added.kind == OutputRecipe::Kind::kView && !call.traits.is_view) {
      return false;  // a view from an operator that is not declared to return views: the key contains no offsets
    }
    if (added.kind == OutputRecipe::Kind::kUndefined) {
      return true;
    }
    const FakeTensorImpl* fake = as_fake(tensor);
    const bool plain = fake != nullptr && fake->has_plain_geometry();
    if (added.kind != OutputRecipe::Kind::kFresh) {
      return plain;
    }
    entry->largest_output = std::max(entry->largest_output, tensor.numel());
    const c10::StorageImpl* storage = storage_of(*tensor.unsafeGetTensorImpl());
    const bool shared = std::find(fresh.begin(), fresh.end(), storage) != fresh.end();
    fresh.push_back(storage);
    return !shared && storage != nullptr && plain;
  };
  for (const c10::IValue& value : outputs_of(call)) {
    bool cacheable = true;
    if (value.isTensor()) {
      entry->returns.push_back(-1);
      cacheable = add(value.toTensor());
    } else if (value.isTensorList()) {
      const c10::List<at::Tensor> list = value.toTensorList();
      entry->returns.push_back(static_cast<int32_t>(list.size()));
      for (const at::Tensor& tensor : list) {
        cacheable &= add(tensor);
      }
    } else {
      entry->returns.push_back(-1);
      OutputRecipe constant;
      constant.constant = value;
      entry->outputs.push_back(std::move(constant));
      cacheable = value.isNone() || value.isInt() || value.isDouble() || value.isBool();
    }
    if (!cacheable) {
      reason = Bypass::kSharedOutputs;
      return CacheEntryPtr();
    }
  }
  entry->is_one_tensor = entry->returns.size() == 1 && entry->returns[0] == -1 &&
      entry->outputs.front().kind != OutputRecipe::Kind::kConstant;
  return entry;
}

namespace {

std::optional<ErrorOutcome::Type> type_of(const c10::Error& error) {
  using Type = ErrorOutcome::Type;
  if (dynamic_cast<const FakeTensorError*>(&error) != nullptr) {
    return Type::kTyped;
  }
  const std::type_info& type = typeid(error);
  if (type == typeid(c10::Error)) {
    return Type::kPlain;
  }
  if (type == typeid(c10::IndexError)) {
    return Type::kIndex;
  }
  if (type == typeid(c10::ValueError)) {
    return Type::kValue;
  }
  if (type == typeid(c10::TypeError)) {
    return Type::kType;
  }
  if (type == typeid(c10::NotImplementedError)) {
    return Type::kNotImplemented;
  }
  if (type == typeid(c10::LinAlgError)) {
    return Type::kLinAlg;
  }
  return std::nullopt;
}

}  // namespace

CacheEntryPtr error_outcome(const CacheKey& key, const c10::Error& error) {
  const std::optional<ErrorOutcome::Type> type = type_of(error);
  if (!type || is_out_of_memory(error)) {
    return CacheEntryPtr();
  }
  auto entry = c10::make_intrusive<CacheEntry>();
  entry->key.assign(key.words().begin(), key.words().end());
  entry->hash = key.hash();
  entry->error = std::make_unique<ErrorOutcome>();
  ErrorOutcome& outcome = *entry->error;
  outcome.message = error.what_without_backtrace();
  outcome.type = *type;
  if (const auto* typed = dynamic_cast<const FakeTensorError*>(&error)) {
    outcome.kind = typed->kind();
    outcome.op = typed->op();
  }
  return entry;
}

namespace {

[[noreturn]] void throw_again(const ErrorOutcome& error) {
  switch (error.type) {
    case ErrorOutcome::Type::kTyped:
      throw_error(error.kind, error.op, error.message);
    case ErrorOutcome::Type::kIndex:
      TORCH_CHECK_INDEX(false, error.message);
    case ErrorOutcome::Type::kValue:
      TORCH_CHECK_VALUE(false, error.message);
    case ErrorOutcome::Type::kType:
      TORCH_CHECK_TYPE(false, error.message);
    case ErrorOutcome::Type::kNotImplemented:
      TORCH_CHECK_NOT_IMPLEMENTED(false, error.message);
    case ErrorOutcome::Type::kLinAlg:
      TORCH_CHECK_LINALG(false, error.message);
    case ErrorOutcome::Type::kPlain:
      break;
  }
  TORCH_CHECK(false, error.message);
}

void apply_geometry(const Geometry& geometry, FakeTensorImpl& tensor) {
  const bool moved = tensor.sizes() != c10::IntArrayRef(geometry.sizes) ||
      tensor.strides() != c10::IntArrayRef(geometry.strides) || tensor.storage_offset() != geometry.storage_offset;
  if (moved) {
    tensor.set_sizes_and_strides(geometry.sizes, geometry.strides, geometry.storage_offset);
  }
}

// Resizes the inputs' storages. If one is refused, those already resized get their old sizes back.
void resize_storages(const Outcome& outcome, c10::ArrayRef<TensorArg> tensors) {
  c10::SmallVector<std::pair<c10::StorageImpl*, size_t>, 2> resized;
  try {
    for (const InputChange& change : outcome.changes) {
      const std::optional<Geometry>& geometry = change.geometry;
      if (!geometry.has_value()) {
        continue;
      }
      c10::StorageImpl* storage = storage_of(*tensors[change.input].impl);
      const size_t before = storage == nullptr ? geometry->nbytes : bytes_now(*storage);
      if (before != geometry->nbytes) {
        resize_storage(storage, geometry->nbytes);
        resized.emplace_back(storage, before);
      }
    }
  } catch (...) {
    for (const auto& [storage, nbytes] : resized) {
      resize_storage(storage, nbytes);
    }
    throw;
  }
}

}  // namespace

at::Tensor make_output(const OutputRecipe& recipe, c10::ArrayRef<TensorArg> tensors, const ModePtr& mode) {
  switch (recipe.kind) {
    case OutputRecipe::Kind::kUndefined:
      return at::Tensor();
    case OutputRecipe::Kind::kInput:
      return at::Tensor(c10::intrusive_ptr<c10::TensorImpl>::unsafe_reclaim_from_nonowning(tensors[recipe.input].impl));
    case OutputRecipe::Kind::kView: {
      const FakeTensorImpl& base = *tensors[recipe.input].fake;
      return make_fake(base.unsafe_storage(), recipe.keys, recipe.dtype, recipe.geometry, recipe.device, base.mode());
    }
    default: {
      at::Tensor fresh = make_fake(
          new_fake_storage(recipe.nbytes, recipe.device, mode->options.storage_observer),
          recipe.keys,
          recipe.dtype,
          recipe.geometry,
          recipe.device,
          mode);
      if (C10_UNLIKELY(recipe.version > 0) && !fresh.is_inference()) {
        fresh.unsafeGetTensorImpl()->set_version_counter(c10::VariableVersion(recipe.version));
      }
      if (C10_UNLIKELY(recipe.is_wrapped_number)) {
        fresh.unsafeGetTensorImpl()->set_wrapped_number(true);
      }
      return fresh;
    }
  }
}

namespace {

void apply_changes(const Outcome& outcome, c10::ArrayRef<TensorArg> tensors) {
  resize_storages(outcome, tensors);
  for (const InputChange& change : outcome.changes) {
    FakeTensorImpl& tensor = *tensors[change.input].fake;
    for (uint32_t i = 0; i < change.version_bumps; ++i) {
      tensor.bump_version();
    }
    const std::optional<Geometry>& geometry = change.geometry;
    if (geometry.has_value()) {
      apply_geometry(*geometry, tensor);
    }
  }
}

}  // namespace

void announce_and_apply(const Outcome& outcome, c10::ArrayRef<TensorArg> tensors, const ModePtr& mode) {
  announce_allocations(outcome.allocations, {}, mode);
  apply_changes(outcome, tensors);
}

void replay(const Call& call, const Outcome& outcome, const ModePtr& mode) {
  if (C10_UNLIKELY(outcome.error != nullptr)) {
    throw_again(*outcome.error);
  }
  const OrderedOutputs ordered(outcome.allocations, mode);
  if (C10_LIKELY(outcome.is_one_tensor)) {
    c10::IValue output = make_output(outcome.outputs.front(), call.tensors(), mode);
    announce_allocations(outcome.allocations, output, mode);
    apply_changes(outcome, call.tensors());
    torch::jit::drop(*call.stack, call.num_args());
    call.stack->push_back(std::move(output));
    return;
  }
  c10::SmallVector<c10::IValue, 4> outputs;
  auto recipe = outcome.outputs.begin();
  for (const int32_t count : outcome.returns) {
    if (count >= 0) {
      c10::List<at::Tensor> list;
      list.reserve(count);
      for (int32_t i = 0; i < count; ++i) {
        list.push_back(make_output(*recipe++, call.tensors(), mode));
      }
      outputs.emplace_back(std::move(list));
    } else if (recipe->kind == OutputRecipe::Kind::kConstant) {
      outputs.push_back((recipe++)->constant);
    } else {
      outputs.emplace_back(make_output(*recipe++, call.tensors(), mode));
    }
  }
  announce_allocations(outcome.allocations, outputs, mode);
  apply_changes(outcome, call.tensors());
  torch::jit::drop(*call.stack, call.num_args());
  for (c10::IValue& output : outputs) {
    call.stack->push_back(std::move(output));
  }
}

}  // namespace torchfake
