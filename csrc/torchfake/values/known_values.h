// Constant propagation: known values of small fakes, and where they are stored.
#pragma once

#include <torchfake/core/fake_tensor_impl.h>

namespace torchfake {

// Note [Known values]
// Models read small values while they run: `if mask.all()`, `linspace(0, 0.1, 12).tolist()`. A fake whose values are
// computed from constants by deterministic operators therefore keeps them: a CPU storage with the same layout is
// attached to the fake's storage (core/fake_storage.h), so that every view sees it.
//
//   mask = torch.ones(1, 8)      # constant: known
//   part = mask[:, :4]           # a view: known through the storage
//   part.zero_()                 # done on the bytes as well: mask.all() is False
//   mask.mul_(torch.rand(1, 8))  # a write of something unknown: no view of this storage is known any more
//
// A tensor of a few elements may also be created empty and then written element by element: the engine records which
// bytes are still unknown, and the tensor is known once all have been written.
//
// Invariants. Known bytes are exactly what the real program would have in memory. Uninitialised values are never known,
// and random ones only if drawn (Note [Draws]). A storage with more elements than the mode allows is known only if it
// repeats fewer values, see Note [Repeated values]. A call without known inputs pays one pointer test per input.
// A mode that propagates real tensors works the same way without a limit, and keeps random and uninitialised data as
// computed. The constants of FakeTensorMode are known values with a limit of one element, and factories produce none.
// Rejected: values per tensor (views and in-place writes would have to find each other), and guessing.

// The largest number of elements for which a fake of such a mode keeps its values.
int64_t value_limit(const FakeModeOptions& options);

// The largest number of elements for which a tensor may become known element by element.
inline constexpr int64_t kPartialLimit = 64;

// Whether any value of the fake, or of another fake over its storage, may be known or have known bounds. Always true
// for an empty fake.
inline bool may_have_known_values(const FakeTensorImpl& fake) {
  if (fake.numel() == 0 || fake.key_set().has(c10::DispatchKey::ZeroTensor)) {
    return true;
  }
  c10::StorageImpl* storage = fake.storage_impl();
  const StorageContext* context = storage == nullptr ? nullptr : storage_context(storage);
  return context != nullptr && (context->known || context->repeated || context->range);
}

// The same for a fake that is only read: false if none of its values has been written yet.
inline bool may_have_readable_values(const FakeTensorImpl& fake) {
  c10::StorageImpl* storage = fake.storage_impl();
  const StorageContext* context = storage == nullptr ? nullptr : storage_context(storage);
  return may_have_known_values(fake) && (context == nullptr || !context->is_blank || fake.numel() == 0);
}

// Whether all values of the fake are known, and it has at most `limit` elements.
bool is_known(const FakeTensorImpl& fake, int64_t limit);

// Whether the fake is not known as a whole, but repeats known values.
bool is_repeated(const FakeTensorImpl& fake, int64_t limit);

// The values of a fake as a real CPU tensor over the same memory, or nullopt if they are unknown or exceed the limit.
std::optional<at::Tensor> known_tensor(const FakeTensorImpl& fake, int64_t limit);

// The value of a fake with one element, or nullopt if it is unknown.
std::optional<c10::Scalar> known_item(const FakeTensorImpl& fake);

// Like known_tensor, for rules and kernels. Their outcome then depends on values, which are not part of the cache key.
std::optional<at::Tensor> read_values(const FakeTensorImpl& fake, int64_t limit);

// Whether the values of a fake are known, and laid out in memory like those of a real tensor.
bool is_in_memory(const FakeTensorImpl& fake);

// Whether `fake` may get `nbytes` more of known values within the mode's limit, which counts all fakes of the process.
bool has_room_for(const FakeTensorImpl& fake, size_t nbytes);

// A real CPU tensor over the bytes behind a fake, which must be at least partially known.
at::Tensor view_of_bytes(const FakeTensorImpl& fake);

// Whether the tensor's elements cover its whole storage, each byte once.
bool fills_storage(const c10::TensorImpl& tensor);

// A new CPU tensor with the same sizes, strides and dtype.
at::Tensor new_buffer(const c10::TensorImpl& like);

// From now on the values of `fake`, which fills its storage, become known as they are written, see mark_written().
void expect_values(const FakeTensorImpl& fake);
void mark_written(const FakeTensorImpl& fake);

// Sets the values of `fake` to those of `real`, a CPU tensor with the same sizes and dtype. `fake` must be dense and
// fill its storage. If known values would exceed their limit, they become unknown instead.
void make_known(const FakeTensorImpl& fake, const at::Tensor& real);

// Whether this is a CPU tensor whose values can be read. A wrapper subclass, for example, has a storage without data.
bool has_values(const at::Tensor& real);

// A fake for a real tensor; its values are known if `real` is a small CPU tensor that fills its storage. Used when a
// constant enters the mode. Pass `copy` if the real tensor may be written to later. Returns a fake unchanged.
at::Tensor lift(const at::Tensor& real, const ModePtr& mode, bool copy);

}  // namespace torchfake
