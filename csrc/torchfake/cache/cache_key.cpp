// The key of a call: everything its outcome can depend on.
#include <torchfake/cache/cache_key.h>

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/flat_hash_map.h>

#include <torchfake/core/kernel_environment.h>

#include <cstring>

namespace torchfake {

const char* bypass_reason_name(Bypass reason) {
  switch (reason) {
    case Bypass::kNone:
      return "none";
    case Bypass::kDisabled:
      return "cache disabled";
    case Bypass::kDataDependent:
      return "data-dependent operator";
    case Bypass::kRealTensor:
      return "real tensor argument";
    case Bypass::kNotBuiltin:
      return "not a builtin operator";
    case Bypass::kArgument:
      return "argument that cannot be keyed";
    case Bypass::kComposite:
      return "composite operator";
    case Bypass::kSharedOutputs:
      return "outputs share a storage";
    case Bypass::kReplacedStorage:
      return "storage replaced";
    case Bypass::kRecorded:
      return "rule or recorder";
    case Bypass::kCount:
      break;
  }
  return "unknown";
}

namespace {

uint64_t bits_of(double value) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// Two words at a time.
uint64_t mix(uint64_t hash, uint64_t first, uint64_t second) {
  __extension__ using wide = unsigned __int128;
  const wide product = static_cast<wide>(first ^ 0x9E3779B97F4A7C15ull) * (second ^ hash);
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

}  // namespace

void CacheKey::grow(size_t words) {
  const size_t size = next_ - begin_;
  const size_t capacity = 2 * (size + words);
  auto heap = std::make_unique_for_overwrite<uint64_t[]>(capacity);
  std::copy(begin_, next_, heap.get());
  heap_ = std::move(heap);
  begin_ = heap_.get();
  next_ = begin_ + size;
  end_ = begin_ + capacity;
}

void CacheKey::add_op(const OpTraits& traits) {
  add(reinterpret_cast<uint64_t>(&traits));
}

void CacheKey::add_tensor(const OpTraits& traits, const TensorArg& arg) {
  if (arg.fake != nullptr && arg.fake->has_plain_geometry()) {
    return add_plain_fake(traits, *arg.fake);
  }
  const c10::TensorImpl& tensor = *arg.impl;
  const c10::Device device = arg.fake != nullptr ? arg.fake->claimed_device() : c10::Device(c10::kCPU);
  uint64_t* words =
      add_tensor(traits.reads_storage, tensor, arg.fake != nullptr, device, tensor.sizes(), tensor.strides().data());
  if (traits.reads_storage) {
    words[0] = static_cast<uint64_t>(tensor.storage_offset());
    words[1] = tensor.has_storage() ? bytes_now(*tensor.unsafe_storage().unsafeGetStorageImpl()) : 0;
  }
}

void CacheKey::add_undefined() {
  add(kUndefinedMark);
}

void CacheKey::add_none() {
  add(kNoneMark);
}

void CacheKey::add_bool(bool value) {
  add(kBoolMark ^ static_cast<uint64_t>(value) << 8);
}

void CacheKey::add_int(int64_t value) {
  uint64_t* words = add_room(2);
  words[0] = kIntMark;
  words[1] = static_cast<uint64_t>(value);
}

void CacheKey::add_double(double value) {
  uint64_t* words = add_room(2);
  words[0] = kDoubleMark;
  words[1] = bits_of(value);
}

void CacheKey::add_complex(c10::complex<double> value) {
  uint64_t* words = add_room(3);
  words[0] = kComplexMark;
  words[1] = bits_of(value.real());
  words[2] = bits_of(value.imag());
}

void CacheKey::add_factor(bool is_int) {
  add(kTypeOnlyMark ^ static_cast<uint64_t>(is_int) << 8);
}

void CacheKey::add_device(c10::Device device) {
  uint64_t* words = add_room(2);
  words[0] = kDeviceMark;
  words[1] = pack(normalize_device(device));
}

void CacheKey::add_string(std::string_view text) {
  add(kStringMark);
  add(text.size());
  for (size_t i = 0; i < text.size(); i += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, text.data() + i, std::min(sizeof(word), text.size() - i));
    add(word);
  }
}

void CacheKey::add_generator(const at::Generator& generator) {
  uint64_t* words = add_room(2);
  words[0] = kGeneratorMark;
  words[1] = generator.defined() ? pack(generator.device()) : kUndefinedMark;
}

void CacheKey::add_list(size_t size) {
  uint64_t* words = add_room(2);
  words[0] = kListMark;
  words[1] = size;
}

void CacheKey::add_int_list(c10::IntArrayRef values) {
  add_list(values.size());
  uint64_t* words = add_room(values.size());
  for (const int64_t value : values) {
    *words++ = static_cast<uint64_t>(value);
  }
}

namespace {

// Finds the first tensor with a given storage: a linear search among few, a table for the long lists of optimizers.
class FirstWithStorage {
 public:
  explicit FirstWithStorage(c10::ArrayRef<TensorArg> tensors) : tensors_(tensors) {
    if (tensors_.size() > kFew) {
      first_.reserve(tensors_.size());
      for (size_t i = 0; i < tensors_.size(); ++i) {
        first_.emplace(storage_of(i), i);
      }
    }
  }

  size_t of(size_t index) const {
    const c10::StorageImpl* storage = storage_of(index);
    if (tensors_.size() > kFew) {
      return first_.find(storage)->second;
    }
    for (size_t i = 0; i < index; ++i) {
      if (storage_of(i) == storage) {
        return i;
      }
    }
    return index;
  }

 private:
  static constexpr size_t kFew = 8;

  const c10::StorageImpl* storage_of(size_t index) const {
    const c10::TensorImpl& tensor = *tensors_[index].impl;
    return tensor.has_storage() ? tensor.unsafe_storage().unsafeGetStorageImpl() : nullptr;
  }

  const c10::ArrayRef<TensorArg> tensors_;
  ska::flat_hash_map<const c10::StorageImpl*, size_t> first_;
};

}  // namespace

// Which inputs share a storage, and where in it they lie.
void CacheKey::add_aliases(const OpTraits& traits, c10::ArrayRef<TensorArg> tensors) {
  if (!traits.mutates || tensors.size() < 2) {
    return;
  }
  const FirstWithStorage first(tensors);
  for (size_t i = 1; i < tensors.size(); ++i) {
    const size_t j = first.of(i);
    if (j != i && tensors[i].impl->has_storage()) {
      uint64_t* words = add_room(3);
      words[0] = i << 32 ^ j << 1 ^ static_cast<uint64_t>(tensors[i].impl == tensors[j].impl);
      words[1] = static_cast<uint64_t>(tensors[i].impl->storage_offset());
      words[2] = static_cast<uint64_t>(tensors[j].impl->storage_offset());
    }
  }
}

bool CacheKey::add_value(const c10::IValue& value, bool type_only) {
  if (value.isNone()) {
    add_none();
  } else if (value.isBool()) {
    add_bool(value.toBool());
  } else if (type_only && (value.isInt() || value.isDouble())) {
    add_factor(value.isInt());
  } else if (value.isInt()) {
    add_int(value.toInt());
  } else if (value.isDouble()) {
    add_double(value.toDouble());
  } else if (value.isComplexDouble()) {
    add_complex(value.toComplexDouble());
  } else if (value.isDevice()) {
    add_device(value.toDevice());
  } else if (value.isString()) {
    add_string(value.toStringRef());
  } else if (value.isIntList()) {
    const c10::ArrayRef<c10::IValue> list = value.toListRef();
    add_list(list.size());
    uint64_t* words = add_room(list.size());
    for (const c10::IValue& element : list) {
      *words++ = static_cast<uint64_t>(element.toInt());
    }
  } else if (value.isList()) {
    const c10::ArrayRef<c10::IValue> list = value.toListRef();
    add_list(list.size());
    for (const c10::IValue& element : list) {
      if (!add_value(element, type_only)) {
        return false;
      }
    }
  } else if (value.isGenerator()) {
    add_generator(value.toGenerator());
  } else {
    return false;
  }
  return true;
}

void CacheKey::add_settings(const OpTraits& traits, const ModeState& mode) {
  const c10::DispatchKeySet excluded = c10::impl::tls_local_dispatch_key_set().excluded_;
  add(KernelEnvironment::base() | static_cast<uint64_t>(mode.options.fake_cuda) << 11 |
      static_cast<uint64_t>(mode.options.allow_fallback_kernels) << 12 |
      static_cast<uint64_t>(mode.options.allow_meta) << 13 |
      static_cast<uint64_t>(mode.options.prefer_device_type.has_value()) << 14 |
      static_cast<uint64_t>(mode.options.exclusive) << 15 |
      static_cast<uint64_t>(mode.options.prefer_device_type.value_or(c10::kCPU)) << 16 |
      // Whether a kernel's own writes increment versions: torch.arange excludes the key, torch.ops.aten.arange does
      // not.
      static_cast<uint64_t>(excluded.has(c10::DispatchKey::ADInplaceOrView)) << 24 |
      static_cast<uint64_t>(KernelEnvironment::cuda_capability(mode)) << 32);
  // The devices for which autocast is disabled: composites call operators that it casts. The CPU's autocast dtype
  // determines what is refused.
  add((excluded & c10::autocast_dispatch_keyset).raw_repr());
  if (C10_UNLIKELY(!excluded.has(c10::DispatchKey::AutocastCPU))) {
    add(static_cast<uint64_t>(KernelEnvironment::autocast_dtype(c10::kCPU)));
  }
  settings_ = traits.settings.load(std::memory_order_relaxed);
  if (C10_UNLIKELY(settings_ != 0)) {
    add_values_of_settings();
  }
}

void CacheKey::add_values_of_settings() {
  before_settings_ = next_ - begin_;
  uint64_t words[KernelEnvironment::kMostWords];
  const size_t count = KernelEnvironment::values(settings_, words);
  std::copy(words, words + count, add_room(count));
}

void CacheKey::add_more_settings(uint32_t settings) {
  if (settings_ != 0) {
    next_ = begin_ + before_settings_;
  }
  settings_ |= settings;
  add_values_of_settings();
  finish();
}

void CacheKey::finish() {
  uint64_t hash = next_ - begin_;
  const uint64_t* word = begin_;
  uint64_t other = 0;  // two chains, so that one multiplication need not wait for the other
  for (; next_ - word >= 4; word += 4) {
    hash = mix(hash, word[0], word[1]);
    other = mix(other, word[2], word[3]);
  }
  hash = mix(hash, other, 0);
  for (; next_ - word >= 2; word += 2) {
    hash = mix(hash, word[0], word[1]);
  }
  hash_ = word == next_ ? hash : mix(hash, *word, 0);
}

Bypass CacheKey::build(const Call& call, const ModeState& mode) {
  const OpTraits& traits = call.traits;
  if (!traits.is_builtin) {
    return Bypass::kNotBuiltin;
  }
  if (traits.data_dependent || (traits.dynamic_shape && !traits.is_index)) {
    return Bypass::kDataDependent;
  }
  if (mode.options.recorder || traits.needs_values) {
    return Bypass::kRecorded;
  }
  add_op(traits);
  const TensorArg* next = call.tensors().begin();  // in argument order
  for (size_t i = 0; i < call.num_args(); ++i) {
    const c10::IValue& value = call.arg(i);
    const ArgTraits& facts = traits.args[i];
    if (facts.kind == ArgKind::kTensor && value.isTensor()) {
      if (next == call.tensors().end() || next->arg != i) {
        add_undefined();
        continue;
      }
      if (next->fake == nullptr && !next->impl->is_wrapped_number()) {
        return Bypass::kRealTensor;
      }
      add_tensor(traits, *next++);
    } else if (facts.kind == ArgKind::kTensorList && value.isList()) {
      const size_t size = value.toListRef().size();
      add_list(size);
      for (size_t element = 0; element < size; ++element) {
        if (next == call.tensors().end() || next->arg != i || next->element != element) {
          add_undefined();
          continue;
        }
        if (next->fake == nullptr) {
          return Bypass::kRealTensor;
        }
        if (traits.is_index && is_mask(c10::typeMetaToScalarType(next->fake->dtype()))) {
          return Bypass::kDataDependent;
        }
        add_tensor(traits, *next++);
      }
    } else if (!add_value(value, facts.scales_only)) {
      return Bypass::kArgument;
    }
  }
  add_aliases(traits, call.tensors());
  add_settings(traits, mode);
  finish();
  return Bypass::kNone;
}

}  // namespace torchfake
