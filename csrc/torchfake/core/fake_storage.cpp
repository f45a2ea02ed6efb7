// The storage of a fake tensor.
#include <torchfake/core/fake_storage.h>

#include <c10/core/Allocator.h>
#include <sys/mman.h>

#include <torchfake/core/compat.h>
#include <torchfake/core/deferred_allocations.h>
#include <torchfake/core/errors.h>
#include <torchfake/core/recycled.h>
#include <torchfake/core/storage_counts.h>
#include <torchfake/core/symbolic_bytes.h>

#include <array>
#include <atomic>
#include <utility>

namespace torchfake {

namespace {

// A storage created for a fake rather than by a kernel. Its memory is recycled, and it can update the counters itself,
// so it needs no context to be counted.
struct FakeStorageImpl final : c10::StorageImpl, Recycled<FakeStorageImpl> {
  using StorageImpl::StorageImpl;
  ~FakeStorageImpl() override {
    count_in(nullptr);
  }
  FakeStorageImpl(const FakeStorageImpl&) = delete;
  FakeStorageImpl& operator=(const FakeStorageImpl&) = delete;
  FakeStorageImpl(FakeStorageImpl&&) = delete;
  FakeStorageImpl& operator=(FakeStorageImpl&&) = delete;

  // A storage that is only weakly referenced is dead.
  void release_resources() override {
    count_in(nullptr);
    StorageImpl::release_resources();
  }

  // Makes it part of `counts`, or of none.
  void count_in(DeviceCounts* counts) {
    if (counts_ != nullptr && counted_ > 0) {
      counts_->remove(counted_);
    }
    counts_ = counts;
    if (counts_ != nullptr) {
      counted_ = StorageCounts::rounded(nbytes());
      if (counted_ > 0) {
        counts_->add(counted_);
      }
    }
  }

  // Called after a possible change of size.
  void count_again() {
    if (counts_ != nullptr) {
      const int64_t before = std::exchange(counted_, StorageCounts::rounded(nbytes()));
      counts_->resize(before, counted_);
    }
  }

  DeviceCounts* counts() const {
    return counts_;
  }

 private:
  DeviceCounts* counts_ = nullptr;
  int64_t counted_ = 0;
};

void count_again(c10::StorageImpl* storage) {
  if (auto* fake = dynamic_cast<FakeStorageImpl*>(storage)) {
    fake->count_again();
  }
}

// One per device, created when the device is first claimed and never destroyed: storages may outlive everything else.
ClaimedMemory* claimed_memory(c10::Device device) {
  constexpr size_t kIndices = size_t{1} << (8 * sizeof(c10::DeviceIndex));
  static std::array<std::atomic<ClaimedMemory*>, c10::COMPILE_TIME_MAX_DEVICE_TYPES * kIndices> table;
  std::atomic<ClaimedMemory*>& place =
      table[static_cast<size_t>(device.type()) * kIndices + static_cast<uint8_t>(device.index())];
  ClaimedMemory* memory = place.load(std::memory_order_acquire);
  if (C10_UNLIKELY(memory == nullptr)) {
    auto made = std::make_unique<ClaimedMemory>(device);
    if (place.compare_exchange_strong(memory, made.get(), std::memory_order_acq_rel)) {
      memory = made.release();
    }
  }
  return memory;
}

void refuse_data(c10::StorageImpl* /*storage*/) {
  at_the_boundary([] {
    raise(
        ErrorKind::kDataAccess,
        "data_ptr",
        "a fake tensor holds no data to point to. Values are known only if they are derived from small constants; keep "
        "this part out of the fake run, or run it on a real tensor.");
  });
}

// `data`, and the context that stays with the storage.
c10::DataPtr data_with_context(void* data, void* context) {
  return c10::DataPtr(data, context, &delete_storage_context, c10::Device(c10::kMeta));
}

StorageContext* ensure_context(c10::StorageImpl* storage, c10::Device device) {
  StorageContext* context = storage_context(storage);
  if (context == nullptr) {
    context = new (Recycled<StorageContext>::operator new(sizeof(StorageContext))) StorageContext(storage, device);
    storage->_mutable_data_ptr_no_checks() = data_with_context(nullptr, context);
    storage->set_allocator(context);
  }
  return context;
}

// Makes reading the data an error, and registers the storage with the observer, if there is one.
void guard(c10::StorageImpl* storage, c10::Device device, const std::shared_ptr<StorageObserver>& observer) {
  compat::set_write_hook(storage, &refuse_data);
  if (C10_UNLIKELY(observer != nullptr)) {
    if (auto* fake = dynamic_cast<FakeStorageImpl*>(storage); fake != nullptr && fake->counts() != nullptr) {
      if (observer->counts() != nullptr) {
        return;  // it updates the counters itself
      }
      fake->count_in(nullptr);
    }
    StorageContext* context = ensure_context(storage, device);
    if (context->observer) {
      return;
    }
    if (DeferredAllocations* deferred = DeferredAllocations::current()) {
      deferred->add(context, observer);
      return;
    }
    observer->on_alloc(allocation_of(context, device, context->nbytes));
    context->observer = observer;
  }
}

std::atomic<size_t> g_bytes_in_use{0};

// Called when the bytes behind a storage are replaced.
void count(StorageContext& context) {
  const size_t before = context.counted;
  context.counted = (context.known ? context.known->nbytes() : 0) + (context.retired ? context.retired->nbytes() : 0);
  g_bytes_in_use.fetch_add(context.counted - before, std::memory_order_relaxed);
}

// Points the storage at `data`, keeping its context.
void repoint(c10::StorageImpl* storage, void* data) {
  c10::DataPtr& old = storage->_mutable_data_ptr_no_checks();
  void* context = old.release_context();
  old = data_with_context(data, context);
}

}  // namespace

// Note [Resized without an operator]
// PyTorch's composites resize an out= argument on the CPU by a function call, not by an operator (resize_output), and a
// fake may claim the CPU. That function asks the storage's allocator for memory, copies what the storage points to, and
// replaces the DataPtr together with its context:
//
//   torch.kron(a, b, out=torch.ones(2))   # values known: the storage points to them
//
// Therefore the context of a storage is also its allocator: when asked for memory, it forgets the known values, so that
// there is nothing to copy, and moves itself into the new DataPtr. Other fake storages point to nothing and lose
// nothing.
c10::DataPtr ClaimedMemory::allocate(size_t /*nbytes*/) {
  return {nullptr, c10::Device(c10::kMeta)};
}

StorageContext::StorageContext(c10::StorageImpl* storage, c10::Device device)
    : ClaimedMemory(device), storage(storage), nbytes(storage->nbytes()) {}

StorageContext::~StorageContext() {
  g_bytes_in_use -= counted;
  if (observer) {
    observer->on_free(this, device(), nbytes);
  } else if (DeferredAllocations* deferred = DeferredAllocations::current()) {
    deferred->forget(this);
  }
  // A storage that lives on with a different DataPtr must not ask this context for memory.
  if (c10::raw::intrusive_ptr::use_count(storage) > 0 && storage->allocator() == this) {
    storage->set_allocator(claimed_memory(device()));
  }
}

c10::DataPtr StorageContext::allocate(size_t new_nbytes) {
  if (storage_context(storage) != this) {
    return ClaimedMemory::allocate(new_nbytes);  // the storages of two fakes were swapped
  }
  if (observer) {
    observer->on_resize(allocation_of(this, device(), new_nbytes), nbytes);
  }
  forget_known_bytes(storage);
  nbytes = new_nbytes;
  storage->_mutable_data_ptr_no_checks().release_context();
  return data_with_context(nullptr, this);
}

void delete_storage_context(void* context) {
  auto* dead = static_cast<StorageContext*>(context);
  dead->~StorageContext();
  Recycled<StorageContext>::operator delete(dead);
}

std::optional<c10::Device> claimed_device_of(const c10::StorageImpl* storage) {
  const auto* memory = dynamic_cast<const ClaimedMemory*>(storage->allocator());
  return memory == nullptr ? std::nullopt : std::optional(memory->device());
}

c10::Storage sibling_storage(const c10::Storage& storage, size_t nbytes, c10::Device device) {
  c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
  const StorageContext* context = storage_context(impl);
  c10::Storage made = new_fake_storage(nbytes, device, context == nullptr ? nullptr : context->observer);
  const auto* counted = dynamic_cast<const FakeStorageImpl*>(impl);
  if (counted != nullptr && counted->counts() != nullptr && claimed_device_of(impl) == device) {
    static_cast<FakeStorageImpl*>(made.unsafeGetStorageImpl())->count_in(counted->counts());
  }
  return made;
}

c10::Storage new_fake_storage(size_t nbytes, c10::Device device, const std::shared_ptr<StorageObserver>& observer) {
  auto storage = c10::make_intrusive<FakeStorageImpl>(
      c10::StorageImpl::use_byte_size_t(),
      c10::SymInt(c10::SymInt::UNCHECKED, static_cast<int64_t>(nbytes)),
      c10::DataPtr(nullptr, c10::Device(c10::kMeta)),
      claimed_memory(device),
      /*resizable=*/true);
  if (StorageCounts* counts = observer == nullptr ? nullptr : observer->counts()) {
    compat::set_write_hook(storage.get(), &refuse_data);
    storage->count_in(counts->of(device));
  } else {
    guard(storage.get(), device, observer);
  }
  return c10::Storage(c10::intrusive_ptr<c10::StorageImpl>(std::move(storage)));
}

void adopt_storage(const c10::Storage& storage, c10::Device device, const std::shared_ptr<StorageObserver>& observer) {
  if (storage_context(storage.unsafeGetStorageImpl()) == nullptr) {
    storage.unsafeGetStorageImpl()->set_allocator(claimed_memory(device));
  }
  guard(storage.unsafeGetStorageImpl(), device, observer);
}

namespace {

// Addresses are assigned in increasing order, starting over when the range is used up.
class AddressRange {
 public:
  static AddressRange& get() {
    static AddressRange range;
    return range;
  }

  uintptr_t take(size_t nbytes) {
    const size_t rounded = (std::max<size_t>(nbytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
    return begin_ + next_.fetch_add(rounded, std::memory_order_relaxed) % kSize;
  }

 private:
  static constexpr size_t kAlignment = 512;
  static constexpr size_t kSize = size_t{1} << 44;
  static constexpr uintptr_t kBegin = uintptr_t{0x7} << 60;  // outside of any address space, where none can be reserved

  AddressRange() {
    void* reserved = mmap(nullptr, kSize, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    begin_ = reserved == MAP_FAILED ? kBegin : reinterpret_cast<uintptr_t>(reserved);
  }

  uintptr_t begin_;
  std::atomic<size_t> next_{0};
};

}  // namespace

uintptr_t address_of(c10::StorageImpl* storage, c10::Device device) {
  StorageContext* context = ensure_context(storage, device);
  if (context->address == 0) {
    context->address = AddressRange::get().take(bytes_now(*storage));
  }
  return context->address;
}

size_t known_bytes_in_use() {
  return g_bytes_in_use.load(std::memory_order_relaxed);
}

void set_known_bytes(c10::StorageImpl* storage, c10::Device device, c10::intrusive_ptr<c10::StorageImpl> bytes) {
  StorageContext* context = ensure_context(storage, device);
  if (context->known) {
    context->retired = std::move(context->known);
  }
  context->repeated.reset();
  context->range.reset();
  context->known = std::move(bytes);
  count(*context);
  complete_known_bytes(storage);
}

void set_repeated_bytes(c10::StorageImpl* storage, c10::Device device, std::unique_ptr<RepeatedBytes> repeated) {
  StorageContext* context = ensure_context(storage, device);
  context->range.reset();
  context->repeated = std::move(repeated);
}

void set_value_range(c10::StorageImpl* storage, c10::Device device, c10::ScalarType dtype, const ValueRange& range) {
  StorageContext* context = ensure_context(storage, device);
  context->range = std::make_unique<const ValueRange>(range);
  context->range_dtype = dtype;
}

void begin_known_bytes(
    c10::StorageImpl* storage,
    c10::Device device,
    c10::intrusive_ptr<c10::StorageImpl> bytes,
    c10::intrusive_ptr<c10::StorageImpl> unknown) {
  StorageContext* context = ensure_context(storage, device);
  context->range.reset();
  context->known = std::move(bytes);
  context->unknown = std::move(unknown);
  context->is_blank = true;
}

void complete_known_bytes(c10::StorageImpl* storage) {
  StorageContext* context = storage_context(storage);
  context->unknown.reset();
  context->is_blank = false;
  // For a claimed CPU the bytes are where a real tensor would have them, so that tolist(), numpy() and C++ code that
  // reads lengths through a pointer find them. For any other device a pointer would not be readable here.
  if (context->device().is_cpu()) {
    repoint(storage, context->known->mutable_data());
    compat::clear_write_hook(storage);
  }
}

void forget_known_bytes(c10::StorageImpl* storage) {
  StorageContext* context = storage_context(storage);
  if (context == nullptr) {
    return;
  }
  context->repeated.reset();
  context->range.reset();
  if (!context->known) {
    return;
  }
  context->retired = std::move(context->known);
  context->unknown.reset();
  context->is_blank = false;
  count(*context);
  repoint(storage, nullptr);
  compat::set_write_hook(storage, &refuse_data);
}

void set_symbolic_bytes(c10::StorageImpl* storage, c10::Device device, const c10::SymInt& nbytes) {
  if (!nbytes.is_heap_allocated()) {
    resize_storage(storage, static_cast<size_t>(nbytes.as_int_unchecked()));
    return;
  }
  if (!has_symbolic_bytes(*storage)) {
    ensure_context(storage, device);  // which preserves the address
  }
  forget_known_bytes(storage);
  compat::clear_write_hook(storage);  // swapping checks it
  c10::DataPtr data = std::move(storage->_mutable_data_ptr_no_checks());
  compat::set_symbolic_size(storage, nbytes);
  storage->_mutable_data_ptr_no_checks() = std::move(data);
  compat::set_write_hook(storage, &refuse_data);
}

size_t bytes_now(const c10::StorageImpl& storage) {
  if (!has_symbolic_bytes(storage)) {
    return storage.nbytes();
  }
  const StorageContext* context = storage_context(const_cast<c10::StorageImpl*>(&storage));
  return context == nullptr ? 0 : context->nbytes;
}

void note_resize(c10::StorageImpl* storage) {
  StorageContext* context = storage_context(storage);
  if (has_symbolic_bytes(*storage)) {
    return;
  }
  if (context == nullptr || context->nbytes == storage->nbytes()) {
    count_again(storage);
    return;
  }
  const size_t nbytes = storage->nbytes();
  storage->set_nbytes(context->nbytes);
  resize_storage(storage, nbytes);
}

void resize_storage(c10::StorageImpl* storage, size_t nbytes) {
  if (StorageContext* context = storage_context(storage)) {
    if (context->observer) {
      context->observer->on_resize(allocation_of(context, context->device(), nbytes), context->nbytes);
    }
    context->nbytes = nbytes;
    forget_known_bytes(storage);
  }
  storage->set_nbytes(nbytes);
  count_again(storage);
}

}  // namespace torchfake
