// What stands behind the storage of a fake tensor: no data, or known values; and who watches it live and die.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/core/Storage.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/SmallVector.h>

#include <torchfake/core/allocation.h>
#include <torchfake/core/value_range.h>

#include <memory>
#include <optional>

namespace torchfake {

// The values of a storage that repeats few of them. See Note [Repeated values].
struct RepeatedBytes {
  struct Dim {
    int64_t size;
    int64_t stride;  // in the elements of the fake's storage
    int64_t value_stride;  // in `values`; 0 where they repeat
  };
  c10::intrusive_ptr<c10::StorageImpl> values;
  size_t itemsize = 0;
  c10::SmallVector<Dim, 4> dims;  // from the largest stride to the smallest; together they cover the storage
};

// The allocator of a fake storage: names the device that is claimed, which the DataPtr cannot, and allocates nothing.
class ClaimedMemory : public c10::Allocator {
 public:
  explicit ClaimedMemory(c10::Device device) : device_(device) {}

  c10::Device device() const {
    return device_;
  }
  c10::DataPtr allocate(size_t nbytes) override;
  void copy_data(void* /*dest*/, const void* /*src*/, size_t /*count*/) const override {}

 private:
  const c10::Device device_;
};

// The context of a fake storage's DataPtr. Most storages have none: it is made when an observer listens or when values
// are known. See Note [Known values] and Note [Resized without an operator].
struct StorageContext final : ClaimedMemory {
  StorageContext(c10::StorageImpl* storage, c10::Device device);
  ~StorageContext() override;
  StorageContext(const StorageContext&) = delete;
  StorageContext& operator=(const StorageContext&) = delete;
  StorageContext(StorageContext&&) = delete;
  StorageContext& operator=(StorageContext&&) = delete;

  // Called by PyTorch where it resizes the storage itself.
  c10::DataPtr allocate(size_t new_nbytes) override;

  c10::StorageImpl* const storage;
  size_t nbytes = 0;
  std::shared_ptr<StorageObserver> observer;
  // A CPU storage of the same size with the real bytes; null when none of them is known.
  c10::intrusive_ptr<c10::StorageImpl> known;
  // Of the same size: 0xFF for every byte that is not known yet. Null when all of them are.
  c10::intrusive_ptr<c10::StorageImpl> unknown;
  // Whether `unknown` is still as it began: no value has been written.
  bool is_blank = false;
  // Instead of `known`, where the storage is large and repeats few values.
  std::unique_ptr<RepeatedBytes> repeated;
  // Instead of `known`, where only bounds of the values are: of elements of that type. See Note [Value ranges].
  std::unique_ptr<const ValueRange> range;
  c10::ScalarType range_dtype = c10::ScalarType::Undefined;
  // Bytes that were known once. Somebody (numpy) may still hold a pointer to them.
  c10::intrusive_ptr<c10::StorageImpl> retired;
  // How much of known_bytes_in_use() these are.
  size_t counted = 0;
  // The number that stands for its address; 0 until somebody asks. See address_of.
  uintptr_t address = 0;
};

void delete_storage_context(void* context);

// The real bytes that stand behind all fakes of the process.
size_t known_bytes_in_use();

// A new storage of a fake on `device`. Throws what the observer throws.
c10::Storage new_fake_storage(size_t nbytes, c10::Device device, const std::shared_ptr<StorageObserver>& observer);

// The same, watched by whoever watches `storage`, another of a fake.
c10::Storage sibling_storage(const c10::Storage& storage, size_t nbytes, c10::Device device);

// Makes `storage`, a data-less meta storage that no fake has used yet, the storage of a fake on `device`.
void adopt_storage(const c10::Storage& storage, c10::Device device, const std::shared_ptr<StorageObserver>& observer);

// The device that the fakes of `storage` claim; nothing where it is no storage of fakes. Its DataPtr says `meta`.
std::optional<c10::Device> claimed_device_of(const c10::StorageImpl* storage);

// A number that stands for the address of a fake storage: the same as long as the storage lives, aligned as an allocator
// of a GPU aligns, and unlike that of any other storage alive. Nothing can be read there: the range is reserved without
// access.
uintptr_t address_of(c10::StorageImpl* storage, c10::Device device);

// The storage of a tensor, or null.
inline c10::StorageImpl* storage_of(const c10::TensorImpl& tensor) {
  return tensor.has_storage() ? tensor.unsafe_storage().unsafeGetStorageImpl() : nullptr;
}

// The context of a fake storage, or null. Also null where somebody gave the storage data of their own.
inline StorageContext* storage_context(c10::StorageImpl* storage) {
  return storage->_mutable_data_ptr_no_checks().cast_context<StorageContext>(&delete_storage_context);
}

// The real bytes behind a fake storage, as far as they are known; null where none is.
inline c10::StorageImpl* partly_known_bytes(c10::StorageImpl* storage) {
  StorageContext* context = storage_context(storage);
  if (context == nullptr || !context->known) {
    return nullptr;
  }
  // A storage can be resized behind the engine's back (untyped_storage().resize_()).
  return context->known->nbytes() == storage->nbytes() ? context->known.get() : nullptr;
}

// The real bytes behind a fake storage, or null where some are not known.
inline c10::StorageImpl* known_bytes(c10::StorageImpl* storage) {
  c10::StorageImpl* bytes = partly_known_bytes(storage);
  return bytes == nullptr || storage_context(storage)->unknown ? nullptr : bytes;
}

// What the values of a large fake storage repeat, or null where that is not known.
inline const RepeatedBytes* repeated_bytes(c10::StorageImpl* storage) {
  StorageContext* context = storage_context(storage);
  if (context == nullptr || !context->repeated) {
    return nullptr;
  }
  return context->nbytes == storage->nbytes() ? context->repeated.get() : nullptr;
}

// From now on the values of `storage` are those of `bytes`, a CPU storage of the same size.
void set_known_bytes(c10::StorageImpl* storage, c10::Device device, c10::intrusive_ptr<c10::StorageImpl> bytes);

// From now on the values of `storage`, none of which was known, are these. They are behind no pointer.
void set_repeated_bytes(c10::StorageImpl* storage, c10::Device device, std::unique_ptr<RepeatedBytes> repeated);

// From now on the values of `storage`, none of which was known, lie in `range`, read as elements of `dtype`.
void set_value_range(c10::StorageImpl* storage, c10::Device device, c10::ScalarType dtype, const ValueRange& range);

// From now on values of `storage` are known one by one, as they are written: none yet. `bytes` is a CPU storage of the
// same size, `unknown` another, filled with 0xFF.
void begin_known_bytes(
    c10::StorageImpl* storage,
    c10::Device device,
    c10::intrusive_ptr<c10::StorageImpl> bytes,
    c10::intrusive_ptr<c10::StorageImpl> unknown);

// The last of them has been written.
void complete_known_bytes(c10::StorageImpl* storage);

// From now on the values of `storage` are not known. Does nothing where they were not.
void forget_known_bytes(c10::StorageImpl* storage);

// To be called after an operator may have changed the size of `storage`: tells the observer, and forgets known bytes
// that no longer cover the storage. Throws what the observer throws, and puts the old size back.
void note_resize(c10::StorageImpl* storage);

// Gives a fake storage another size, as untyped_storage().resize_() does. Throws what the observer throws, having changed
// nothing.
void resize_storage(c10::StorageImpl* storage, size_t nbytes);

}  // namespace torchfake
