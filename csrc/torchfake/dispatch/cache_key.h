// Step 3 of 5: everything the outcome of a call can depend on, as a row of words.
#pragma once

#include <torchfake/dispatch/call.h>

namespace torchfake {

// Why a call went past the cache. In the order of `bypass_reason_name`.
enum class Bypass : uint8_t {
  kNone,
  kDisabled,  // switched off
  kDataDependent,  // the outcome depends on values
  kRealTensor,  // a real tensor among the arguments
  kNotBuiltin,  // an operator of the user's: what its kernel looks at is its own affair
  kArgument,  // an argument of a kind that cannot be part of a key: a storage, a symbolic integer
  kComposite,  // decomposed into operators that are cached
  kSharedOutputs,  // fresh outputs that share a storage
  kReplacedStorage,  // an input got another storage
  kRecorded,  // a recorder or a rule wants to see the call
  kCount,
};

const char* bypass_reason_name(Bypass reason);

// Note [Cache key]
// Words, compared as a whole; the hash only finds the candidate. For every tensor: keys (backend, conjugate, inference),
// dtype, number-ness, device, sizes, strides. Where it can matter and only there: the storage offset and size (views,
// resizes), and which inputs share a storage and at what offset (operators that write). For every other argument its
// value, but for factors that only scale (a learning rate): their type. Of the thread: default dtype, inference mode,
// deterministic algorithms, whether absent devices may be claimed, whether writes count up versions.
// Left out, because kernels of step 4 cannot see it: values, autograd state, the identity of tensors.
class CacheKey {
 public:
  // Builds the key of a call, or says why there is none.
  Bypass build(const Call& call, const ModeState& mode);

  uint64_t hash() const {
    return hash_;
  }
  c10::ArrayRef<uint64_t> words() const {
    return words_;
  }

 private:
  void add(uint64_t word) {
    words_.push_back(word);
  }
  uint64_t* add_room(size_t words);
  void add_tensor(const Call& call, const TensorArg& tensor);
  void add_aliases(const Call& call);
  bool add_value(const c10::IValue& value, bool type_only);
  void add_settings(const ModeState& mode);
  void finish();

  c10::SmallVector<uint64_t, 64> words_;
  uint64_t hash_ = 0;
};

}  // namespace torchfake
