// Storages of fakes whose size is an expression.
#pragma once

#include <c10/core/SymInt.h>

#include <torchfake/core/fake_storage.h>

namespace torchfake {

// Whether the size of a storage is an expression; nbytes() throws there.
inline bool has_symbolic_bytes(const c10::StorageImpl& storage) {
  return storage.sym_nbytes().is_heap_allocated();
}
inline bool has_symbolic_bytes(const c10::TensorImpl& tensor) {
  const c10::StorageImpl* storage = storage_of(tensor);
  return storage != nullptr && has_symbolic_bytes(*storage);
}

// The size of the storage in bytes; for an expression, its value at the hints.
size_t bytes_now(const c10::StorageImpl& storage);

// Makes the size of a fake storage an expression. Observers keep seeing its present value. A plain number is set as
// such.
void set_symbolic_bytes(c10::StorageImpl* storage, c10::Device device, const c10::SymInt& nbytes);

}  // namespace torchfake
