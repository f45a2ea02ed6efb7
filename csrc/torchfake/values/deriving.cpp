// Constant propagation: the values of outputs, stored with the outcome in the cache.
#include <torchfake/values/deriving.h>

#include <torchfake/values/known_values.h>
#include <torchfake/values/small_bytes.h>
#include <torchfake/values/value_ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace torchfake {

namespace {

constexpr size_t kMostSourceBytes = 2560;

enum SourceKind : uint64_t { kUnknown, kNumber, kKnown, kBounded };

class Collector {
 public:
  explicit Collector(c10::SmallVector<char, 256>& bytes) : bytes_(bytes) {}

  bool add(const void* data, size_t nbytes) {
    const auto* begin = static_cast<const char*>(data);
    if (bytes_.size() + nbytes > kMostSourceBytes) {
      return false;
    }
    bytes_.append(begin, begin + nbytes);
    return true;
  }

 private:
  c10::SmallVector<char, 256>& bytes_;
};

class Comparer {
 public:
  explicit Comparer(const std::vector<char>& bytes) : next_(bytes.data()), end_(next_ + bytes.size()) {}

  bool add(const void* data, size_t nbytes) {
    if (static_cast<size_t>(end_ - next_) < nbytes || (nbytes > 0 && std::memcmp(next_, data, nbytes) != 0)) {
      return false;
    }
    next_ += nbytes;
    return true;
  }
  bool is_at_end() const {
    return next_ == end_;
  }

 private:
  const char* next_;
  const char* end_;
};

// Passes what is known of a tensor to `sink`. Returns false if it cannot be a source or if the sink returns false.
template <typename Sink>
bool add_tensor(Sink& sink, const TensorArg& tensor) {
  const auto add_words = [&](auto... word) {
    const std::array<uint64_t, sizeof...(word)> words{static_cast<uint64_t>(word)...};
    return sink.add(words.data(), sizeof(words));
  };
  if (tensor.fake == nullptr) {
    return tensor.impl->is_wrapped_number() && tensor.impl->numel() == 1 && add_words(kNumber) &&
        sink.add(tensor.impl->data(), tensor.impl->itemsize());
  }
  c10::StorageImpl* storage = storage_of(*tensor.fake);
  const StorageContext* context = storage == nullptr ? nullptr : storage_context(storage);
  if (context == nullptr || !(context->known || context->repeated || context->range)) {
    return add_words(kUnknown);
  }
  if (const ValueRange* range = context->range.get()) {
    const std::array<double, 2> bounds{range->low, range->high};
    return add_words(kBounded, context->range_dtype, range->may_be_nan) && sink.add(bounds.data(), sizeof(bounds));
  }
  const c10::StorageImpl* known = known_bytes(storage);
  return known != nullptr && add_words(kKnown, tensor.fake->storage_offset(), known->nbytes()) &&
      sink.add(known->data(), known->nbytes());
}

template <typename Sink>
bool add_all(Sink&& sink, c10::ArrayRef<TensorArg> tensors, c10::ArrayRef<uint64_t> factors) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    // Unknown numbers equal themselves: `x < x` is known.
    const auto is_same = [&](const TensorArg& other) { return other.impl == tensors[i].impl; };
    const ptrdiff_t first = std::find_if(tensors.begin(), tensors.begin() + i, is_same) - tensors.begin();
    if (!add_tensor(sink, tensors[i]) || (i > 0 && !sink.add(&first, sizeof(first)))) {
      return false;
    }
  }
  return sink.add(factors.data(), factors.size() * sizeof(uint64_t));
}

}  // namespace

bool Sources::read(const Call& call) {
  c10::SmallVector<uint64_t, 4> factors;
  for (size_t i = 0; i < call.num_args(); ++i) {
    const c10::IValue& value = call.arg(i);
    if (!call.traits.args[i].scales_only) {
      continue;
    }
    if (value.isInt()) {
      factors.push_back(static_cast<uint64_t>(value.toInt()));
    } else if (value.isDouble()) {
      factors.push_back(std::bit_cast<uint64_t>(value.toDouble()));
    } else if (value.isList()) {
      return false;
    }
  }
  return add_all(Collector(bytes_), call.tensors(), factors);
}

bool Sources::are_those_of(const DerivedValues& derived) const {
  return derived.sources.size() == bytes_.size() &&
      std::memcmp(derived.sources.data(), bytes_.data(), bytes_.size()) == 0;
}

bool has_sources(const DerivedValues& derived, c10::ArrayRef<TensorArg> tensors, c10::ArrayRef<uint64_t> factors) {
  Comparer comparer(derived.sources);
  return add_all(comparer, tensors, factors) && comparer.is_at_end();
}

bool fits_mode(const DerivedValues& derived, const FakeModeOptions& options) {
  return derived.limit == options.known_values && derived.with_ranges == has_ranges(options) &&
      !options.propagate_real_tensors;
}

bool follows_from_key(const Call& call) {
  const OpTraits& traits = call.traits;
  const bool is_made = traits.values == ValueSource::kConstant && !traits.mutates;
  const bool is_overwritten = traits.values == ValueSource::kOverwrite && call.tensors().size() == 1;
  return (is_made || is_overwritten) && !traits.reads_files && traits.num_returns == 1 &&
      outputs_of(call).front().isTensor();
}

bool follows_from_sources(const OpTraits& traits) {
  return (traits.values == ValueSource::kInputs || traits.values == ValueSource::kNone) && traits.is_builtin &&
      !traits.mutates && !traits.is_view && !traits.updates_statistics && !traits.reads_files && !traits.is_product &&
      !traits.is_collective && !traits.replaces_storage;
}

c10::intrusive_ptr<DerivedValues> derived_values(const Call& call, const ModeState& mode, bool must_be_known) {
  auto derived = c10::make_intrusive<DerivedValues>();
  derived->limit = mode.options.known_values;
  derived->with_ranges = has_ranges(mode.options);
  const c10::ArrayRef<c10::IValue> outputs = outputs_of(call);
  for (size_t i = 0; i < outputs.size(); ++i) {
    const FakeTensorImpl* fake =
        outputs[i].isTensor() && outputs[i].toTensor().defined() ? as_fake(outputs[i].toTensor()) : nullptr;
    c10::StorageImpl* storage = fake == nullptr ? nullptr : storage_of(*fake);
    if (storage == nullptr) {
      return {};
    }
    const StorageContext* context = storage_context(storage);
    const bool has_values = context != nullptr && (context->known || context->repeated);
    const bool has_bounds = context != nullptr && context->range;
    if (i >= derived->outputs.size() && (has_values || has_bounds)) {
      return {};
    }
    if (has_values) {
      const c10::StorageImpl* bytes = known_bytes(storage);
      if (bytes == nullptr || bytes->nbytes() == 0 || bytes->nbytes() > kSmallBytes || !fills_storage(*fake)) {
        return {};
      }
      derived->outputs[i].bytes = copy_of_bytes(*bytes, bytes->nbytes());
    } else if (must_be_known || (storage->nbytes() <= kSmallBytes && !has_room_for(*fake, storage->nbytes()))) {
      return {};  // may be known once other values have been freed
    } else if (has_bounds) {
      derived->outputs[i].range = *context->range;
      derived->outputs[i].range_dtype = context->range_dtype;
    }
  }
  return derived;
}

void give_values(const FakeTensorImpl& output, const DerivedValues::Output& values) {
  if (values.bytes) {
    const size_t nbytes = values.bytes->nbytes();
    if (C10_LIKELY(has_room_for(output, nbytes))) {
      set_known_bytes(output.storage_impl(), output.claimed_device(), copy_of_bytes(*values.bytes, nbytes));
    }
  } else if (values.range) {
    set_value_range(output.storage_impl(), output.claimed_device(), values.range_dtype, *values.range);
  }
}

bool is_covered_by(const FakeTensorImpl& fake, const c10::StorageImpl& bytes) {
  return fills_storage(fake) && fake.storage_impl()->nbytes() == bytes.nbytes();
}

void overwrite_with(const FakeTensorImpl& fake, const c10::StorageImpl& bytes) {
  c10::StorageImpl* storage = fake.storage_impl();
  c10::StorageImpl* known = partly_known_bytes(storage);
  if (known == nullptr) {
    forget_known_bytes(storage);
    if (has_room_for(fake, bytes.nbytes())) {
      set_known_bytes(storage, fake.claimed_device(), copy_of_bytes(bytes, bytes.nbytes()));
    }
    return;
  }
  std::memcpy(known->mutable_data(), bytes.data(), bytes.nbytes());
  if (storage_context(storage)->unknown) {
    complete_known_bytes(storage);
  }
}

}  // namespace torchfake
