// Step 3 of 5: everything the outcome of a call can depend on.
#include <torchfake/dispatch/cache_key.h>

#include <ATen/Context.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/flat_hash_map.h>

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

uint64_t mix(uint64_t hash, uint64_t word) {
  __extension__ using wide = unsigned __int128;
  const wide product = static_cast<wide>(hash ^ word) * 0x9E3779B97F4A7C15ull;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

uint64_t pack(c10::Device device) {
  return static_cast<uint64_t>(device.type()) << 8 | static_cast<uint8_t>(device.index());
}

// Marks of what a word is, so that rows of different meaning never agree by chance.
enum Mark : uint64_t {
  kNoneMark = 0x1000000000000001,
  kTensorMark,
  kUndefinedMark,
  kIntMark,
  kDoubleMark,
  kBoolMark,
  kComplexMark,
  kStringMark,
  kDeviceMark,
  kListMark,
  kGeneratorMark,
  kTypeOnlyMark,
};

}  // namespace

uint64_t* CacheKey::add_room(size_t words) {
  const size_t size = words_.size();
  words_.resize_for_overwrite(size + words);
  return words_.data() + size;
}

void CacheKey::add_tensor(const Call& call, const TensorArg& arg) {
  const c10::TensorImpl& tensor = *arg.impl;
  const c10::Device device = arg.fake != nullptr ? arg.fake->claimed_device() : c10::Device(c10::kCPU);
  const c10::IntArrayRef sizes = tensor.sizes();
  const c10::IntArrayRef strides = tensor.strides();
  const bool with_storage = call.traits.reads_storage;
  uint64_t* words = add_room(2 + 2 * sizes.size() + (with_storage ? 2 : 0));
  *words++ = kTensorMark ^ sizes.size() << 8 ^ static_cast<uint64_t>(c10::typeMetaToScalarType(tensor.dtype())) << 16 ^
      static_cast<uint64_t>(tensor.is_wrapped_number()) << 24 ^ static_cast<uint64_t>(arg.fake != nullptr) << 25 ^
      pack(device) << 32;
  *words++ = tensor.key_set().raw_repr();
  words = std::copy(sizes.begin(), sizes.end(), words);
  words = std::copy(strides.begin(), strides.end(), words);
  if (with_storage) {
    *words++ = static_cast<uint64_t>(tensor.storage_offset());
    *words++ = tensor.has_storage() ? tensor.unsafe_storage().nbytes() : 0;
  }
}

namespace {

bool is_mask(const FakeTensorImpl& fake) {
  const c10::ScalarType dtype = c10::typeMetaToScalarType(fake.dtype());
  return dtype == c10::kBool || dtype == c10::kByte;
}

// Finds the first tensor with a storage. A search among few, a table for the long lists of optimizers.
class FirstWithStorage {
 public:
  explicit FirstWithStorage(const Call& call) : tensors_(call.tensors()) {
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

  const c10::SmallVector<TensorArg, 8>& tensors_;
  ska::flat_hash_map<const c10::StorageImpl*, size_t> first_;
};

}  // namespace

// Which inputs share a storage, and where in it they lie.
void CacheKey::add_aliases(const Call& call) {
  const auto& tensors = call.tensors();
  if (!call.traits.mutates || tensors.size() < 2) {
    return;
  }
  const FirstWithStorage first(call);
  for (size_t i = 1; i < tensors.size(); ++i) {
    const size_t j = first.of(i);
    if (j != i && tensors[i].impl->has_storage()) {
      add(i << 32 ^ j << 1 ^ static_cast<uint64_t>(tensors[i].impl == tensors[j].impl));
      add(static_cast<uint64_t>(tensors[i].impl->storage_offset()));
      add(static_cast<uint64_t>(tensors[j].impl->storage_offset()));
    }
  }
}

bool CacheKey::add_value(const c10::IValue& value, bool type_only) {
  if (value.isNone()) {
    add(kNoneMark);
  } else if (value.isBool()) {
    add(kBoolMark ^ static_cast<uint64_t>(value.toBool()) << 8);
  } else if (type_only && (value.isInt() || value.isDouble())) {
    add(kTypeOnlyMark ^ static_cast<uint64_t>(value.isInt()) << 8);
  } else if (value.isInt()) {
    add(kIntMark);
    add(static_cast<uint64_t>(value.toInt()));
  } else if (value.isDouble()) {
    add(kDoubleMark);
    add(bits_of(value.toDouble()));
  } else if (value.isComplexDouble()) {
    add(kComplexMark);
    add(bits_of(value.toComplexDouble().real()));
    add(bits_of(value.toComplexDouble().imag()));
  } else if (value.isDevice()) {
    add(kDeviceMark);
    add(pack(normalize_device(value.toDevice())));
  } else if (value.isString()) {
    const std::string& text = value.toStringRef();
    add(kStringMark);
    add(text.size());
    for (size_t i = 0; i < text.size(); i += sizeof(uint64_t)) {
      uint64_t word = 0;
      std::memcpy(&word, text.data() + i, std::min(sizeof(word), text.size() - i));
      add(word);
    }
  } else if (value.isIntList()) {
    const c10::ArrayRef<c10::IValue> list = value.toListRef();
    uint64_t* words = add_room(2 + list.size());
    *words++ = kListMark;
    *words++ = list.size();
    for (const c10::IValue& element : list) {
      *words++ = static_cast<uint64_t>(element.toInt());
    }
  } else if (value.isList()) {
    const c10::ArrayRef<c10::IValue> list = value.toListRef();
    add(kListMark);
    add(list.size());
    for (const c10::IValue& element : list) {
      if (!add_value(element, type_only)) {
        return false;
      }
    }
  } else if (value.isDoubleList()) {
    const std::vector<double> list = value.toDoubleVector();
    add(kListMark);
    add(list.size());
    for (const double element : list) {
      add(type_only ? 0 : bits_of(element));
    }
  } else if (value.isBoolList()) {
    const c10::List<bool> list = value.toBoolList();
    add(kListMark);
    add(list.size());
    for (size_t i = 0; i < list.size(); ++i) {
      add(list.get(i) ? 1 : 0);
    }
  } else if (value.isGenerator()) {
    add(kGeneratorMark);
  } else {
    return false;
  }
  return true;
}

void CacheKey::add_settings(const ModeState& mode) {
  const at::Context& context = at::globalContext();
  add(static_cast<uint64_t>(c10::get_default_dtype_as_scalartype()) |
      static_cast<uint64_t>(c10::InferenceMode::is_enabled()) << 8 |
      static_cast<uint64_t>(context.deterministicAlgorithms()) << 9 |
      static_cast<uint64_t>(context.deterministicAlgorithmsWarnOnly()) << 10 |
      static_cast<uint64_t>(mode.options.fake_cuda) << 11 |
      static_cast<uint64_t>(mode.options.allow_fallback_kernels) << 12 |
      static_cast<uint64_t>(mode.options.allow_meta) << 13 |
      static_cast<uint64_t>(mode.options.prefer_device_type.has_value()) << 14 |
      static_cast<uint64_t>(mode.options.exclusive) << 15 |
      static_cast<uint64_t>(mode.options.prefer_device_type.value_or(c10::kCPU)) << 16 |
      // Whether a kernel's own writes count up versions: torch.arange excludes the key, torch.ops.aten.arange does not.
      static_cast<uint64_t>(c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::ADInplaceOrView)) << 24);
}

void CacheKey::finish() {
  uint64_t hash = words_.size();
  for (const uint64_t word : words_) {
    hash = mix(hash, word);
  }
  hash_ = hash;
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
  add(reinterpret_cast<uint64_t>(&traits));
  add_settings(mode);
  const TensorArg* next = call.tensors().begin();  // in the order of the arguments
  for (size_t i = 0; i < call.num_args(); ++i) {
    const c10::IValue& value = call.arg(i);
    const ArgTraits& facts = traits.args[i];
    if (facts.kind == ArgKind::kTensor && value.isTensor()) {
      if (next == call.tensors().end() || next->arg != i) {
        add(kUndefinedMark);
        continue;
      }
      if (next->fake == nullptr && !next->impl->is_wrapped_number()) {
        return Bypass::kRealTensor;
      }
      add_tensor(call, *next++);
    } else if (facts.kind == ArgKind::kTensorList && value.isList()) {
      const size_t size = value.toListRef().size();
      add(kListMark);
      add(size);
      for (size_t element = 0; element < size; ++element) {
        if (next == call.tensors().end() || next->arg != i || next->element != element) {
          add(kUndefinedMark);
          continue;
        }
        if (next->fake == nullptr) {
          return Bypass::kRealTensor;
        }
        if (traits.is_index && is_mask(*next->fake)) {
          return Bypass::kDataDependent;
        }
        add_tensor(call, *next++);
      }
    } else if (!add_value(value, facts.scales_only)) {
      return Bypass::kArgument;
    }
  }
  add_aliases(call);
  finish();
  return Bypass::kNone;
}

}  // namespace torchfake
