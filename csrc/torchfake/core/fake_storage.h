// The storage of a fake tensor: without data or with known values, and observed over its lifetime.
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

// The values of a storage that consists of few repeated ones. See Note [Repeated values].
struct RepeatedBytes {
  struct Dim {
    int64_t size;
    int64_t stride;  // in elements of the fake's storage
    int64_t value_stride;  // in `values`; 0 for a repeated dimension
  };
  c10::intrusive_ptr<c10::StorageImpl> values;
  size_t itemsize = 0;
  c10::SmallVector<Dim, 4> dims;  // from the largest stride to the smallest; together they cover the storage
};

// The allocator of a fake storage: records the claimed device, which the DataPtr cannot, and allocates nothing.
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

// The context of a fake storage's DataPtr. Most storages have none: it is created when an observer is present or values
// are known. See Note [Known values] and Note [Resized without an operator].
struct StorageContext final : ClaimedMemory {
  StorageContext(c10::StorageImpl* storage, c10::Device device);
  ~StorageContext() override;
  StorageContext(const StorageContext&) = delete;
  StorageContext& operator=(const StorageContext&) = delete;
  StorageContext(StorageContext&&) = delete;
  StorageContext& operator=(StorageContext&&) = delete;

  // Called by PyTorch when it resizes the storage itself.
  c10::DataPtr allocate(size_t new_nbytes) override;

  c10::StorageImpl* const storage;
  size_t nbytes = 0;
  std::shared_ptr<StorageObserver> observer;
  // A CPU storage of the same size with the real bytes; null if none of them is known.
  c10::intrusive_ptr<c10::StorageImpl> known;
  // Of the same size: 0xFF for every byte that is still unknown. Null if all are known.
  c10::intrusive_ptr<c10::StorageImpl> unknown;
  // Whether `unknown` is unchanged: no value has been written.
  bool is_blank = false;
  // Instead of `known`, for a large storage of few repeated values.
  std::unique_ptr<RepeatedBytes> repeated;
  // Instead of `known`, if only bounds are known: for elements of this type. See Note [Value ranges].
  std::unique_ptr<const ValueRange> range;
  c10::ScalarType range_dtype = c10::ScalarType::Undefined;
  // Bytes that used to be known: a numpy array may still point to them.
  c10::intrusive_ptr<c10::StorageImpl> retired;
  // The share of known_bytes_in_use() that belongs to this storage.
  size_t counted = 0;
  // The number that stands for its address; 0 until requested. See address_of.
  uintptr_t address = 0;
};

// The deleter of a fake storage's DataPtr: destroys its StorageContext, and reports the storage as freed.
void delete_storage_context(void* context);

// The number of real bytes behind all fakes of the process.
size_t known_bytes_in_use();

// A new storage of a fake on `device`. Throws what the observer throws.
c10::Storage new_fake_storage(size_t nbytes, c10::Device device, const std::shared_ptr<StorageObserver>& observer);

// As above, observed by the observer of `storage`, another storage of a fake.
c10::Storage sibling_storage(const c10::Storage& storage, size_t nbytes, c10::Device device);

// Turns `storage`, a meta storage without data that no fake uses yet, into the storage of a fake on `device`.
void adopt_storage(const c10::Storage& storage, c10::Device device, const std::shared_ptr<StorageObserver>& observer);

// The device that the fakes of `storage` claim; no value if it is not a storage of fakes. Its DataPtr says `meta`.
std::optional<c10::Device> claimed_device_of(const c10::StorageImpl* storage);

// A number that stands for the address of a fake storage: constant over its lifetime, aligned as a GPU allocator
// aligns, and different from that of any other live storage. The range is reserved without access, so nothing can be
// read there.
uintptr_t address_of(c10::StorageImpl* storage, c10::Device device);

// The storage of a tensor, or null.
inline c10::StorageImpl* storage_of(const c10::TensorImpl& tensor) {
  return tensor.has_storage() ? tensor.unsafe_storage().unsafeGetStorageImpl() : nullptr;
}

// The context of a fake storage, or null, also if the user has given the storage their own data.
inline StorageContext* storage_context(c10::StorageImpl* storage) {
  return storage->_mutable_data_ptr_no_checks().cast_context<StorageContext>(&delete_storage_context);
}

// The real bytes behind a fake storage, as far as they are known; null if none is known.
inline c10::StorageImpl* partly_known_bytes(c10::StorageImpl* storage) {
  StorageContext* context = storage_context(storage);
  if (context == nullptr || !context->known) {
    return nullptr;
  }
  // A storage can be resized without the engine's knowledge (untyped_storage().resize_()).
  return context->known->nbytes() == storage->nbytes() ? context->known.get() : nullptr;
}

// The real bytes behind a fake storage, or null unless all of them are known.
inline c10::StorageImpl* known_bytes(c10::StorageImpl* storage) {
  c10::StorageImpl* bytes = partly_known_bytes(storage);
  return bytes == nullptr || storage_context(storage)->unknown ? nullptr : bytes;
}

// The repeated values of a large fake storage, or null if they are unknown.
inline const RepeatedBytes* repeated_bytes(c10::StorageImpl* storage) {
  StorageContext* context = storage_context(storage);
  if (context == nullptr || !context->repeated) {
    return nullptr;
  }
  return context->nbytes == storage->nbytes() ? context->repeated.get() : nullptr;
}

// Makes the values of `storage` those of `bytes`, a CPU storage of the same size.
void set_known_bytes(c10::StorageImpl* storage, c10::Device device, c10::intrusive_ptr<c10::StorageImpl> bytes);

// Sets the values of `storage`, all of them unknown so far. No pointer leads to them.
void set_repeated_bytes(c10::StorageImpl* storage, c10::Device device, std::unique_ptr<RepeatedBytes> repeated);

// Sets the bounds of `storage`, whose values are unknown: they lie in `range`, read as elements of `dtype`.
void set_value_range(c10::StorageImpl* storage, c10::Device device, c10::ScalarType dtype, const ValueRange& range);

// Starts recording the values of `storage` one by one as they are written; none is known yet. `bytes` is a CPU storage
// of the same size, `unknown` another, filled with 0xFF.
void begin_known_bytes(
    c10::StorageImpl* storage,
    c10::Device device,
    c10::intrusive_ptr<c10::StorageImpl> bytes,
    c10::intrusive_ptr<c10::StorageImpl> unknown);

// Called when the last of them has been written.
void complete_known_bytes(c10::StorageImpl* storage);

// Forgets the values of `storage`. Does nothing if they are unknown.
void forget_known_bytes(c10::StorageImpl* storage);

// Tells `observer` of a storage that it has not been told of. Throws what the observer throws.
void report_allocation(c10::StorageImpl* storage, c10::Device device, const std::shared_ptr<StorageObserver>& observer);

// The observer that has been told of the storage, the id that it was given, and its word in the storage. All are null or
// 0 for a storage that nobody observes, or that is only counted.
struct Observation {
  StorageObserver* observer = nullptr;
  const void* id = nullptr;
  uintptr_t word = 0;  // of a DirectObserver
};
Observation observation_of(c10::StorageImpl* storage);

// Called after an operator may have changed the size of `storage`: notifies the observer, and forgets known bytes that
// no longer cover the storage. If the observer throws, restores the old size and rethrows.
void note_resize(c10::StorageImpl* storage);

// Resizes a fake storage as untyped_storage().resize_() does. Throws what the observer throws, with nothing changed.
void resize_storage(c10::StorageImpl* storage, size_t nbytes);

}  // namespace torchfake
