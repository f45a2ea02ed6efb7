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

// A storage created for a fake rather than by a kernel. Its memory is recycled, and it can update counters and report to
// a DirectObserver itself, so it needs no context for either.
struct FakeStorageImpl final : c10::StorageImpl, Recycled<FakeStorageImpl> {
  using StorageImpl::StorageImpl;
  ~FakeStorageImpl() override {
    end_observation();
  }
  FakeStorageImpl(const FakeStorageImpl&) = delete;
  FakeStorageImpl& operator=(const FakeStorageImpl&) = delete;
  FakeStorageImpl(FakeStorageImpl&&) = delete;
  FakeStorageImpl& operator=(FakeStorageImpl&&) = delete;

  // A storage that is only weakly referenced is dead.
  void release_resources() override {
    end_observation();
    StorageImpl::release_resources();
  }

  // Makes it part of `counts`, which may be null.
  void count_in(DeviceCounts* counts) {
    counts_ = counts;
    if (counts_ != nullptr) {
      value_ = StorageCounts::rounded(nbytes());
      if (value_ > 0) {
        counts_->add(static_cast<int64_t>(value_));
      }
    }
  }

  // Reports it to `observer`, and makes it part of `counts`, which may be null. Throws what the observer throws.
  void report_to(DirectObserver* observer, DeviceCounts* counts, c10::Device device) {
    value_ = word_for(observer, device, nbytes());
    observer_ = observer;
    counts_ = counts;
    if (const int64_t counted = this->counted(); counts_ != nullptr && counted > 0) {
      counts_->add(counted);
    }
  }

  // Called before the size becomes `nbytes`. Throws what the observer throws, with nothing changed.
  void report_resize(c10::Device device, size_t nbytes) {
    const int64_t before = counted();
    if (observer_ == nullptr) {
      value_ = StorageCounts::rounded(nbytes);
    } else {
      // In PyTorch's order: allocate the new memory, copy, release the old memory.
      release(std::exchange(value_, word_for(observer_, device, nbytes)));
    }
    if (counts_ != nullptr) {
      counts_->resize(before, counted());
    }
  }

  void end_observation() {
    if (const int64_t counted = this->counted(); counts_ != nullptr && counted > 0) {
      counts_->remove(counted);
    }
    if (observer_ != nullptr) {
      release(std::exchange(value_, 0));
    } else if (counts_ == nullptr) {
      if (DeferredAllocations* deferred = DeferredAllocations::current(); C10_UNLIKELY(deferred != nullptr)) {
        deferred->forget(this);
      }
    }
    counts_ = nullptr;
    observer_ = nullptr;
  }

  DeviceCounts* counts() const {
    return counts_;
  }
  DirectObserver* observer() const {
    return observer_;
  }
  uintptr_t word() const {
    return observer_ == nullptr ? 0 : value_;
  }
  // The size that the observer was told, if there is one.
  std::optional<size_t> reported_nbytes() const {
    return observer_ == nullptr ? std::nullopt : std::optional(value_ == 0 ? 0 : observer_->direct_nbytes(value_));
  }

 private:
  uintptr_t word_for(DirectObserver* observer, c10::Device device, size_t nbytes) const {
    return nbytes == 0 ? 0 : observer->on_direct_alloc(allocation_of(this, device, nbytes));
  }
  void release(uintptr_t word) noexcept {
    if (word != 0) {
      observer_->on_direct_free(word);
    }
  }
  int64_t counted() const {
    if (counts_ == nullptr) {
      return 0;
    }
    if (observer_ == nullptr) {
      return static_cast<int64_t>(value_);
    }
    return value_ == 0 ? 0 : StorageCounts::rounded(observer_->direct_nbytes(value_));
  }

  DeviceCounts* counts_ = nullptr;
  DirectObserver* observer_ = nullptr;
  uintptr_t value_ = 0;  // the observer's word or, without an observer, the bytes that are counted
};
static_assert(sizeof(FakeStorageImpl) <= 120);  // malloc rounds this up to what it takes anyway

FakeStorageImpl* as_fake_storage(c10::StorageImpl* storage) {
  return dynamic_cast<FakeStorageImpl*>(storage);
}

void report_resize(c10::StorageImpl* storage, size_t nbytes) {
  if (FakeStorageImpl* fake = as_fake_storage(storage)) {
    fake->report_resize(claimed_device_of(storage).value_or(c10::Device(c10::kMeta)), nbytes);
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

bool reports_directly(const FakeStorageImpl* fake, c10::Device device, const StorageObserver& observer) {
  return fake != nullptr && observer.direct().observer != nullptr && !device.is_cpu() && !device.is_meta();
}

// Registers the storage with `observer`, unless another one has it. `fake` is the storage itself, or null.
void register_with(
    c10::StorageImpl* storage,
    FakeStorageImpl* fake,
    c10::Device device,
    const std::shared_ptr<StorageObserver>& observer) {
  if (fake != nullptr && fake->observer() != nullptr) {
    return;
  }
  if (fake != nullptr && fake->counts() != nullptr) {
    if (observer->counts() != nullptr) {
      return;
    }
    fake->end_observation();
  }
  if (const StorageContext* context = storage_context(storage); context != nullptr && context->observer) {
    return;
  }
  if (DeferredAllocations* deferred = DeferredAllocations::current()) {
    deferred->add(storage, device, observer);
    return;
  }
  report_allocation(storage, device, observer);
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
    deferred->forget(storage);
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
  report_resize(storage, new_nbytes);
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
  const FakeStorageImpl* fake = as_fake_storage(impl);
  std::shared_ptr<StorageObserver> observer = context == nullptr ? nullptr : context->observer;
  if (observer == nullptr && fake != nullptr && fake->observer() != nullptr) {
    observer = fake->observer()->shared_from_this();
  }
  c10::Storage made = new_fake_storage(nbytes, device, observer);
  if (observer == nullptr && fake != nullptr && fake->counts() != nullptr && claimed_device_of(impl) == device) {
    static_cast<FakeStorageImpl*>(made.unsafeGetStorageImpl())->count_in(fake->counts());
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
  compat::set_write_hook(storage.get(), &refuse_data);
  if (observer != nullptr) {
    if (StorageCounts* counts = observer->counts()) {
      storage->count_in(counts->of(device));
    } else {
      register_with(storage.get(), storage.get(), device, observer);
    }
  }
  return c10::Storage(c10::intrusive_ptr<c10::StorageImpl>(std::move(storage)));
}

void adopt_storage(const c10::Storage& storage, c10::Device device, const std::shared_ptr<StorageObserver>& observer) {
  c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
  if (storage_context(impl) == nullptr) {
    impl->set_allocator(claimed_memory(device));
  }
  compat::set_write_hook(impl, &refuse_data);
  if (observer != nullptr) {
    register_with(impl, as_fake_storage(impl), device, observer);
  }
}

void report_allocation(
    c10::StorageImpl* storage,
    c10::Device device,
    const std::shared_ptr<StorageObserver>& observer) {
  if (FakeStorageImpl* fake = as_fake_storage(storage); reports_directly(fake, device, *observer)) {
    StorageCounts* counts = observer->direct().counts;
    fake->report_to(observer->direct().observer, counts == nullptr ? nullptr : counts->of(device), device);
    return;
  }
  StorageContext* context = ensure_context(storage, device);
  observer->on_alloc(allocation_of(context, device, context->nbytes));
  context->observer = observer;
}

Observation observation_of(c10::StorageImpl* storage) {
  if (const FakeStorageImpl* fake = as_fake_storage(storage); fake != nullptr && fake->observer() != nullptr) {
    return {fake->observer(), fake, fake->word()};
  }
  const StorageContext* context = storage_context(storage);
  return context == nullptr || !context->observer ? Observation{} : Observation{context->observer.get(), context};
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
  if (has_symbolic_bytes(*storage)) {
    return;
  }
  const size_t nbytes = storage->nbytes();
  const FakeStorageImpl* fake = as_fake_storage(storage);
  std::optional<size_t> before = fake == nullptr ? std::nullopt : fake->reported_nbytes();
  if (const StorageContext* context = storage_context(storage); !before && context != nullptr) {
    before = context->nbytes;
  }
  if (!before) {
    report_resize(storage, nbytes);
  } else if (*before != nbytes) {
    storage->set_nbytes(*before);
    resize_storage(storage, nbytes);
  }
}

void resize_storage(c10::StorageImpl* storage, size_t nbytes) {
  StorageContext* context = storage_context(storage);
  if (context != nullptr && context->observer) {
    context->observer->on_resize(allocation_of(context, context->device(), nbytes), context->nbytes);
  }
  report_resize(storage, nbytes);
  if (context != nullptr) {
    context->nbytes = nbytes;
    forget_known_bytes(storage);
  }
  storage->set_nbytes(nbytes);
}

}  // namespace torchfake
