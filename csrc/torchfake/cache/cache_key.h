// The key of a call: everything its outcome can depend on, as a row of words.
#pragma once

#include <torchfake/core/call.h>
#include <torchfake/core/symbolic_bytes.h>

namespace torchfake {

// Why a call bypassed the cache. In the order of `bypass_reason_name`.
enum class Bypass : uint8_t {
  kNone,
  kDisabled,  // switched off
  kDataDependent,  // the outcome depends on values
  kRealTensor,  // a real tensor among the arguments
  kNotBuiltin,  // a user-defined operator: what its kernel reads is unknown
  kArgument,  // an argument that cannot be part of a key: a storage, a symbolic integer
  kComposite,  // decomposed into operators that are cached themselves
  kSharedOutputs,  // fresh outputs that share a storage
  kReplacedStorage,  // an input was given another storage
  kRecorded,  // a recorder or a rule needs to see the call
  kCount,
};

// The reason in words, as cache_info() reports it: "cache disabled".
const char* bypass_reason_name(Bypass reason);

// Note [Cache key]
// A key is a row of words, compared as a whole; the hash only finds the candidate. For every tensor it contains: keys
// (backend, conjugate, inference), dtype, whether it is a wrapped number, device, sizes, strides. Only where they can
// matter: the storage offset and size (views, resizes), and which inputs share a storage and at which offset (operators
// that write). For every other argument its value, or only its type for factors that scale (a learning rate). For the
// mode: whether absent devices may be claimed and similar options. For the thread: autocast, whether writes increment
// versions, and the global settings of Note [Kernel environment].
// Not included, because the kernels of step 4 cannot see them: values, autograd state, the identity of tensors.
//
// Keys are built in two places, from boxed arguments (`build`) and from unboxed C++ arguments
// (dispatch/unboxed_call.h), both through the `add_` functions below, so that they agree word for word. Hazard: entries
// are only stored under keys of `build`. If the other place produced fewer or different words, it would miss and take
// the slow path; it cannot find a wrong entry.
class CacheKey {
 public:
  CacheKey() = default;
  CacheKey(const CacheKey&) = delete;
  CacheKey& operator=(const CacheKey&) = delete;
  CacheKey(CacheKey&&) = delete;
  CacheKey& operator=(CacheKey&&) = delete;

  // Builds the key of a call, or says why it has none.
  Bypass build(const Call& call, const ModeState& mode);

  // The pieces, in this order: the operator, its arguments, aliases, settings; then `finish`.
  void add_op(const OpTraits& traits);
  void add_tensor(const OpTraits& traits, const TensorArg& tensor);
  void add_plain_fake(const OpTraits& traits, const FakeTensorImpl& fake);  // the same for a plain geometry
  void add_undefined();
  void add_none();
  void add_bool(bool value);
  void add_int(int64_t value);
  void add_double(double value);
  void add_complex(c10::complex<double> value);
  void add_factor(bool is_int);  // a number of which only the type matters
  void add_device(c10::Device device);
  void add_string(std::string_view text);
  void add_generator(const at::Generator& generator);
  void add_list(size_t size);  // its elements follow
  void add_int_list(c10::IntArrayRef values);
  void add_aliases(const OpTraits& traits, c10::ArrayRef<TensorArg> tensors);
  void add_settings(const OpTraits& traits, const ModeState& mode);
  void finish();

  // Adds the values of `settings`, together with those already included, to a finished key.
  void add_more_settings(uint32_t settings);

  uint64_t hash() const {
    return hash_;
  }
  // The settings whose values the key contains in addition to those of every key.
  uint32_t settings() const {
    return settings_;
  }
  c10::ArrayRef<uint64_t> words() const {
    return c10::ArrayRef<uint64_t>(begin_, next_);
  }

 private:
  // Tags for the kinds of words, so that rows with different meanings never compare equal.
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
  static uint64_t pack(c10::Device device) {
    return static_cast<uint64_t>(device.type()) << 8 | static_cast<uint8_t>(device.index());
  }

  static constexpr size_t kInline = 96;

  void add(uint64_t word) {
    *add_room(1) = word;
  }
  uint64_t* add_room(size_t words) {
    if (C10_UNLIKELY(static_cast<size_t>(end_ - next_) < words)) {
      grow(words);
    }
    uint64_t* room = next_;
    next_ += words;
    return room;
  }
  void grow(size_t words);
  uint64_t* add_tensor(
      bool with_storage,
      const c10::TensorImpl& tensor,
      bool is_fake,
      c10::Device device,
      c10::IntArrayRef sizes,
      const int64_t* strides);
  bool add_value(const c10::IValue& value, bool type_only);
  void add_values_of_settings();

  // Not a SmallVector, which would check its capacity and store its size with every word.
  uint64_t inline_[kInline];
  uint64_t* begin_ = inline_;
  uint64_t* next_ = inline_;
  uint64_t* end_ = inline_ + kInline;
  std::unique_ptr<uint64_t[]> heap_;  // used once `inline_` is too small
  uint64_t hash_ = 0;
  uint32_t settings_ = 0;
  size_t before_settings_ = 0;  // the number of words before the values of `settings_`, which come last
};

// Reserves two words for the storage, if they are needed.
inline uint64_t* CacheKey::add_tensor(
    bool with_storage,
    const c10::TensorImpl& tensor,
    bool is_fake,
    c10::Device device,
    c10::IntArrayRef sizes,
    const int64_t* strides) {
  const size_t dims = sizes.size();
  uint64_t* words = add_room(2 + 2 * dims + (with_storage ? 2 : 0));
  words[0] = kTensorMark ^ dims << 8 ^ static_cast<uint64_t>(c10::typeMetaToScalarType(tensor.dtype())) << 16 ^
      static_cast<uint64_t>(tensor.is_wrapped_number()) << 24 ^ static_cast<uint64_t>(is_fake) << 25 ^
      pack(device) << 32;
  words[1] = tensor.key_set().raw_repr();
  words += 2;
  for (size_t i = 0; i < dims; ++i, words += 2) {
    words[0] = static_cast<uint64_t>(sizes[i]);
    words[1] = static_cast<uint64_t>(strides[i]);
  }
  return words;
}

inline void CacheKey::add_plain_fake(const OpTraits& traits, const FakeTensorImpl& fake) {
  const c10::impl::SizesAndStrides& geometry = fake.plain_sizes_and_strides();
  uint64_t* words = add_tensor(
      traits.reads_storage, fake, true, fake.claimed_device(), geometry.sizes_arrayref(), geometry.strides_data());
  if (traits.reads_storage) {
    const c10::StorageImpl* storage = fake.storage_impl();
    words[0] = static_cast<uint64_t>(fake.storage_offset());
    words[1] = storage == nullptr ? 0 : bytes_now(*storage);
  }
}

}  // namespace torchfake
