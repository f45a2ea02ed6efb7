// Constant propagation: the values of small fakes that are known, and where they are kept.
#pragma once

#include <torchfake/core/fake_tensor_impl.h>

namespace torchfake {

// Note [Known values]
// Models look at small values while they run: `if mask.all()`, `linspace(0, 0.1, 12).tolist()`. A fake whose values
// follow from constants by deterministic operators therefore keeps them: a CPU storage with the same layout stands
// behind the fake's storage (core/fake_storage.h), so that every view sees it.
//
//   mask = torch.ones(1, 8)      # constant: known
//   part = mask[:, :4]           # a view: known through the storage
//   part.zero_()                 # done on the bytes as well: mask.all() is False
//   mask.mul_(torch.rand(1, 8))  # a write of something unknown: no view of this storage is known any more
//
// A tensor of a few elements may also be made empty and then written element by element: the engine remembers which
// bytes are still unknown, and knows the tensor when none is.
//
// Invariants. Known bytes are exactly what the real program would have in memory. Nothing random or uninitialised is
// ever known. A storage of more elements than the mode allows is known only where it repeats fewer values, see
// Note [Repeated values]. A call none of whose inputs is known pays one pointer test an input.
// A mode that propagates real tensors is the same with no limit, and with random and uninitialised data taken as it
// happens to come out. FakeTensorMode's constants are the same with a limit of one, and nothing known from factories.
// Rejected: a value per tensor (views and in-place writes would have to find each other), and guessing.

// The most elements a fake of such a mode may have for its values to be kept.
int64_t value_limit(const FakeModeOptions& options);

// As many elements as a tensor may have to become known piece by piece.
inline constexpr int64_t kPartialLimit = 64;

// Whether any value of the fake, or of another that shares its storage, may be known, or lies in a known range. Of an empty
// one all are.
inline bool may_have_known_values(const FakeTensorImpl& fake) {
  if (fake.numel() == 0 || fake.key_set().has(c10::DispatchKey::ZeroTensor)) {
    return true;
  }
  c10::StorageImpl* storage = fake.storage_impl();
  const StorageContext* context = storage == nullptr ? nullptr : storage_context(storage);
  return context != nullptr && (context->known || context->repeated || context->range);
}

// The same for a fake that is only read: one whose values have not been written yet has none to read.
inline bool may_have_readable_values(const FakeTensorImpl& fake) {
  c10::StorageImpl* storage = fake.storage_impl();
  const StorageContext* context = storage == nullptr ? nullptr : storage_context(storage);
  return may_have_known_values(fake) && (context == nullptr || !context->is_blank || fake.numel() == 0);
}

// Whether all values of the fake are known, and there are no more than `limit`.
bool is_known(const FakeTensorImpl& fake, int64_t limit);

// Whether a fake that is not known as a whole repeats values that are.
bool is_repeated(const FakeTensorImpl& fake, int64_t limit);

// The values of a fake as a real CPU tensor that shares them, or nothing where they are not known or exceed the limit.
std::optional<at::Tensor> known_tensor(const FakeTensorImpl& fake, int64_t limit);

// The value of a fake of one element, or nothing where it is not known.
std::optional<c10::Scalar> known_item(const FakeTensorImpl& fake);

// As known_tensor, for rules and kernels, whose outcome then depends on what no cache key contains.
std::optional<at::Tensor> read_values(const FakeTensorImpl& fake, int64_t limit);

// Whether the values of a fake are known and lie in memory as those of a real tensor do.
bool is_in_memory(const FakeTensorImpl& fake);

// Whether `nbytes` more may be known of `fake`: not where the fakes of the process know too much already.
bool has_room_for(const FakeTensorImpl& fake, size_t nbytes);

// A real CPU tensor over the bytes behind a fake, some of which must be known.
at::Tensor view_of_bytes(const FakeTensorImpl& fake);

// Whether the tensor's elements are all of its storage, each once.
bool fills_storage(const c10::TensorImpl& tensor);

// A new CPU tensor of the same sizes, strides and dtype.
at::Tensor new_buffer(const c10::TensorImpl& like);

// From now on the values of `fake`, which fills its storage, become known as they are written: mark_written() tells.
void expect_values(const FakeTensorImpl& fake);
void mark_written(const FakeTensorImpl& fake);

// Makes the values of `fake` those of `real`, a CPU tensor of the same sizes and dtype. `fake` must be dense and fill
// its storage. Where there is no room for them, they are not known.
void make_known(const FakeTensorImpl& fake, const at::Tensor& real);

// A fake for a real tensor, with its values known if it is a small CPU tensor that fills its storage: a constant enters
// the mode. `copy` where somebody else may write to the real tensor later. A fake comes back as it is.
at::Tensor lift(const at::Tensor& real, const ModePtr& mode, bool copy);

}  // namespace torchfake
