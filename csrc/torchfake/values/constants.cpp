// Constant propagation: the constants of a mode that propagates real tensors, and copies of known values.
#include <torchfake/values/constants.h>

#include <torchfake/core/plain_cpu.h>
#include <torchfake/core/to_fake.h>
#include <torchfake/core/weak_memo.h>
#include <torchfake/values/known_values.h>
#include <torchfake/values/small_bytes.h>

#include <cstring>
#include <mutex>
#include <unordered_map>

namespace torchfake {

namespace {

// Never destroyed: fakes may outlive static storage.
WeakMemo<c10::TensorImpl>& constant_tensors() {
  static auto* memo = new WeakMemo<c10::TensorImpl>();
  return *memo;
}

WeakMemo<c10::StorageImpl>& constant_storages() {
  static auto* memo = new WeakMemo<c10::StorageImpl>();
  return *memo;
}

template <typename Impl>
typename WeakMemo<Impl>::Key key_of(const Impl* impl) {
  return {impl, nullptr, c10::kCPU};
}

template <typename Impl>
void remember(WeakMemo<Impl>& memo, const Impl* impl) {
  const auto strong = c10::intrusive_ptr<Impl>::unsafe_reclaim_from_nonowning(const_cast<Impl*>(impl));
  memo.remember(key_of(impl), strong, strong);
}

// The copies of values handed out. Each lives as long as the fake's storage, because callers compare its address.
class Copies {
 public:
  using Storage = c10::intrusive_ptr<c10::StorageImpl>;

  Storage of(c10::StorageImpl* storage, const c10::StorageImpl& bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = copies_.find(storage);
    if (found != copies_.end() && !found->second.source.expired() && equal(*found->second.copy, bytes)) {
      return found->second.copy;
    }
    copies_.erase(storage);
    Storage copy = copy_of_bytes(bytes, bytes.nbytes());
    copies_.emplace(
        storage,
        Entry{c10::weak_intrusive_ptr<c10::StorageImpl>(Storage::unsafe_reclaim_from_nonowning(storage)), copy});
    sweep();
    return copy;
  }

 private:
  struct Entry {
    c10::weak_intrusive_ptr<c10::StorageImpl> source;
    Storage copy;
  };

  static bool equal(const c10::StorageImpl& one, const c10::StorageImpl& other) {
    return one.nbytes() == other.nbytes() && std::memcmp(one.data(), other.data(), one.nbytes()) == 0;
  }

  void sweep() {
    if (copies_.size() < next_sweep_) {
      return;
    }
    for (auto entry = copies_.begin(); entry != copies_.end();) {
      entry = entry->second.source.expired() ? copies_.erase(entry) : std::next(entry);
    }
    next_sweep_ = std::max<size_t>(64, copies_.size() * 2);
  }

  std::mutex mutex_;
  std::unordered_map<const c10::StorageImpl*, Entry> copies_;
  size_t next_sweep_ = 64;
};

}  // namespace

void mark_as_constant(const FakeTensorImpl& fake) {
  if (fake.has_storage()) {
    remember<c10::TensorImpl>(constant_tensors(), &fake);
    remember<c10::StorageImpl>(constant_storages(), fake.storage_impl());
  }
}

bool is_constant(const FakeTensorImpl& fake) {
  return fake.has_storage() && constant_tensors().find(key_of<c10::TensorImpl>(&fake)) &&
      constant_storages().find(key_of<c10::StorageImpl>(fake.storage_impl()));
}

void write_constants(c10::StorageImpl* storage) {
  constant_storages().forget(key_of<c10::StorageImpl>(storage));
}

at::Tensor copy_of_values(const FakeTensorImpl& fake, const at::Tensor& values) {
  const c10::StorageImpl* bytes = fake.has_storage() ? known_bytes(fake.storage_impl()) : nullptr;
  if (bytes == nullptr || bytes->nbytes() == 0 || bytes->nbytes() > kSmallBytes) {
    PlainCpu plain;
    return values.clone();
  }
  static auto* copies = new Copies();
  return cpu_tensor_over(copies->of(fake.storage_impl(), *bytes), fake);
}

}  // namespace torchfake
