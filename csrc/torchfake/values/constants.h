// Constant propagation: the values of outputs computed from constants, stored with the outcome in the cache.
#pragma once

#include <torchfake/core/call.h>

namespace torchfake {

// Note [Constants]
// zeros, full, arange and zeros_like create small tensors with known values; fill_ and zero_ write known values to a
// tensor (Note [Known values]). The values depend on the non-tensor arguments, which are part of the cache key. The
// real operator therefore runs on the first calls only, and its result is stored with the entry. A later hit gets its
// own copy, which may be written to. At most a few kilobytes are stored: running the real operator is about as fast as
// copying more.
//
// Other operators compute values from their inputs, and programs repeat the same computations:
//
//   hidden = hidden * (1 - padding_mask)   # in every layer
//
// The first result that a hit computes is therefore stored too, together with the bytes it was computed from: those of
// the inputs, and the numbers that are not part of the key. A later hit that reads the same bytes gets a copy. Bytes
// are compared rather than tensors: a program may write to known values through a pointer (numpy) without the engine
// noticing.

// The bytes that a call reads and that its key does not contain.
class SourceBytes {
 public:
  // Reads the bytes of a call with known inputs. Returns false and keeps nothing if they exceed a kilobyte.
  bool read(const Call& call);

  bool empty() const {
    return bytes_.empty();
  }

  // Whether `constant`, whose first `nbytes` are the values of an output, was computed from these bytes.
  bool are_kept_in(const c10::StorageImpl& constant, size_t nbytes) const;

  c10::ArrayRef<char> bytes() const {
    return bytes_;
  }

 private:
  void add(const void* data, size_t nbytes);
  bool add_tensor(const TensorArg& tensor);

  c10::SmallVector<char, 256> bytes_;
};

// In a mode that propagates real tensors every fake has values, but PyTorch still distinguishes constants: tensors
// created from given values, and results of operators on such tensors only. A tensor remains a constant until something
// else is written to its storage.
void mark_as_constant(const FakeTensorImpl& fake);
bool is_constant(const FakeTensorImpl& fake);
void write_constants(c10::StorageImpl* storage);  // ends it for all tensors over the storage

// A copy of the known values of a fake. Fakes that share a storage get copies that share one, and the same copy as long
// as the values do not change.
at::Tensor copy_of_values(const FakeTensorImpl& fake, const at::Tensor& values);

// Called after the values of a call have been computed. Returns a copy of the values of its single output if they
// depend only on the call's key, and on `sources` unless empty; otherwise null. The sources are appended.
c10::intrusive_ptr<c10::StorageImpl> constant_of(const Call& call, const SourceBytes& sources);

// Gives `output`, a fresh fake, the first `nbytes` of a constant as its values.
void give_constant(const FakeTensorImpl& output, const c10::StorageImpl& constant, size_t nbytes);

// Whether the fake fills its storage and the storage is as large as the constant, so that it can be overwritten with
// it.
bool is_covered_by(const FakeTensorImpl& fake, const c10::StorageImpl& constant);

// Overwrites the values of a fake for which is_covered_by() holds. Known bytes keep their address: callers may hold a
// pointer to them.
void overwrite_with_constant(const FakeTensorImpl& fake, const c10::StorageImpl& constant);

}  // namespace torchfake
