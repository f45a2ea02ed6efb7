// Constant propagation: the values of what an operator makes from constants, kept with the outcome in the cache.
#pragma once

#include <torchfake/core/call.h>

namespace torchfake {

// Note [Constants]
// zeros, full, arange and zeros_like make small tensors whose values are known, fill_ and zero_ give them to one (Note [Known values]). The values follow
// from the arguments that are not tensors, and these are all in the key of the cache: so the real operator runs on the
// first calls alone, and what it made is kept with the entry. A later hit gets a copy of its own, which may be written to.
// Only a few kilobytes are kept; the real operator makes anything larger about as fast as it can be copied.
//
// Other operators compute values from those of their inputs, and programs compute the same ones again and again:
//
//   hidden = hidden * (1 - padding_mask)   # in every layer
//
// So the first result that a hit computes is kept too, together with the bytes that it was computed from: those of the
// inputs, and the numbers that are not in the key. A later hit that reads the same bytes gets a copy. Bytes are compared,
// not tensors: a program may write to known values through a pointer (numpy) without anybody hearing of it.

// The bytes that a call reads and that its key does not hold.
class SourceBytes {
 public:
  // Reads those of a call whose inputs are known. False, and none, where they are more than a kilobyte.
  bool read(const Call& call);

  bool empty() const {
    return bytes_.empty();
  }

  // Whether `constant`, whose first `nbytes` are the values of an output, was computed from these.
  bool are_kept_in(const c10::StorageImpl& constant, size_t nbytes) const;

  c10::ArrayRef<char> bytes() const {
    return bytes_;
  }

 private:
  void add(const void* data, size_t nbytes);
  bool add_tensor(const TensorArg& tensor);

  c10::SmallVector<char, 256> bytes_;
};

// In a mode that propagates real tensors every fake has values, and PyTorch still says which of them are constants: a tensor
// that came with its value, and what operators make of such tensors alone. A tensor is one until its storage is written to
// with anything else.
void mark_as_constant(const FakeTensorImpl& fake);
bool is_constant(const FakeTensorImpl& fake);
void write_constants(c10::StorageImpl* storage);  // ends it, for all tensors over the storage

// A copy of the values of a fake, which are known. Fakes that share a storage get copies that share one, the same as long
// as the values are.
at::Tensor copy_of_values(const FakeTensorImpl& fake, const at::Tensor& values);

// After a call whose values have been followed: a copy of those of its one output, where they follow from the key of the
// call, and from `sources` unless these are empty; null where they do not. The sources are appended.
c10::intrusive_ptr<c10::StorageImpl> constant_of(const Call& call, const SourceBytes& sources);

// Gives `output`, a fresh fake, the values of a constant: its first `nbytes`.
void give_constant(const FakeTensorImpl& output, const c10::StorageImpl& constant, size_t nbytes);

// Whether the elements of a fake are all of a storage as large as the constant, so that it can be overwritten with it.
bool is_covered_by(const FakeTensorImpl& fake, const c10::StorageImpl& constant);

// Overwrites the values of a fake that is covered by the constant. Bytes that were known stay in their place: somebody may
// hold a pointer to them.
void overwrite_with_constant(const FakeTensorImpl& fake, const c10::StorageImpl& constant);

}  // namespace torchfake
