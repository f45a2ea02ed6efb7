// Constant propagation: the values of what an operator makes from constants, kept with the outcome in the cache.
#pragma once

#include <torchfake/core/call.h>

namespace torchfake {

// Note [Constants]
// zeros, full, arange and zeros_like make small tensors whose values are known, fill_ and zero_ give them to one (Note [Known values]). The values follow
// from the arguments that are not tensors, and these are all in the key of the cache: so the real operator runs on the
// first calls alone, and what it made is kept with the entry. A later hit gets a copy of its own, which may be written to.
// Only a few kilobytes are kept; the real operator makes anything larger about as fast as it can be copied.

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
// call; null where they do not.
c10::intrusive_ptr<c10::StorageImpl> constant_of(const Call& call);

// Gives `output`, a fresh fake, the values of a constant.
void give_constant(const FakeTensorImpl& output, const c10::StorageImpl& constant);

// Whether the elements of a fake are all of a storage as large as the constant, so that it can be overwritten with it.
bool is_covered_by(const FakeTensorImpl& fake, const c10::StorageImpl& constant);

// Overwrites the values of a fake that is covered by the constant. Bytes that were known stay in their place: somebody may
// hold a pointer to them.
void overwrite_with_constant(const FakeTensorImpl& fake, const c10::StorageImpl& constant);

}  // namespace torchfake
