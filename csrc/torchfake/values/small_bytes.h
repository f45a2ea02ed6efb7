// Memory for the known values of small tensors.
#pragma once

#include <c10/core/StorageImpl.h>

namespace torchfake {

// Values of up to this many bytes are stored and copied; recomputing larger ones is about as fast as copying them.
inline constexpr size_t kSmallBytes = 16384;

// A CPU storage of `nbytes` uninitialised bytes. Memory for a few kilobytes is recycled: see Note [Recycled memory].
c10::intrusive_ptr<c10::StorageImpl> new_bytes(size_t nbytes);

// A CPU storage with the first `nbytes` bytes of another.
c10::intrusive_ptr<c10::StorageImpl> copy_of_bytes(const c10::StorageImpl& bytes, size_t nbytes);

}  // namespace torchfake
