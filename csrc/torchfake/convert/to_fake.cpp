// Real (or meta) tensors made fake, aliases kept.
#include <torchfake/convert/to_fake.h>

#include <ATen/EmptyTensor.h>
#include <c10/util/flat_hash_map.h>

#include <torchfake/core/errors.h>

#include <mutex>

namespace torchfake {

namespace {

// Which fake storage stands for which real one. Holds neither alive: an entry whose real or fake storage is gone counts
// as absent, and is swept out when the table has doubled.
class StorageMemo {
 public:
  // The fake storage for `real` on `device` in `mode`, made by `make` if there is none.
  template <typename Make>
  c10::Storage find_or_make(const c10::Storage& real, c10::Device device, const ModeState* mode, const Make& make) {
    std::lock_guard<std::mutex> lock(mutex_);
    const Key key{real.unsafeGetStorageImpl(), mode, device};
    auto found = entries_.find(key);
    if (found != entries_.end() && !found->second.real.expired()) {
      if (auto fake = found->second.fake.lock()) {
        return c10::Storage(std::move(fake));
      }
    }
    c10::Storage fake = make();
    entries_.erase(key);
    entries_.emplace(key, Entry{real.getWeakStorageImpl(), fake.getWeakStorageImpl()});
    sweep();
    return fake;
  }

 private:
  struct Key {
    const void* storage;
    const void* mode;
    c10::Device device;
    bool operator==(const Key& other) const {
      return storage == other.storage && mode == other.mode && device == other.device;
    }
  };
  struct KeyHash {
    size_t operator()(const Key& key) const {
      return std::hash<const void*>()(key.storage) ^ std::hash<const void*>()(key.mode) * 31 ^
          std::hash<c10::Device>()(key.device) * 1009;
    }
  };
  struct Entry {
    c10::weak_intrusive_ptr<c10::StorageImpl> real;
    c10::weak_intrusive_ptr<c10::StorageImpl> fake;
  };

  void sweep() {
    if (entries_.size() < next_sweep_) {
      return;
    }
    for (auto entry = entries_.begin(); entry != entries_.end();) {
      const bool dead = entry->second.real.expired() || entry->second.fake.expired();
      entry = dead ? entries_.erase(entry) : std::next(entry);
    }
    next_sweep_ = std::max<size_t>(64, entries_.size() * 2);
  }

  std::mutex mutex_;
  std::unordered_map<Key, Entry, KeyHash> entries_;
  size_t next_sweep_ = 64;
};

StorageMemo& memo() {
  static auto* memo = new StorageMemo();  // never destroyed: fakes may outlive static storage
  return *memo;
}

void check_convertible(const at::Tensor& tensor) {
  const auto refuse = [](const char* what) {
    raise(
        ErrorKind::kUnsupportedFakeTensor,
        "to_fake",
        std::string(what) + " tensors cannot be faked; only strided ones can.");
  };
  if (tensor.layout() != c10::kStrided) {
    refuse(tensor.layout() == c10::kJagged || tensor.is_nested() ? "nested" : "sparse");
  }
  if (tensor.is_nested()) {
    refuse("nested");
  }
  if (tensor.is_quantized()) {
    refuse("quantized");
  }
  if (!tensor.has_storage()) {
    refuse("storage-less");
  }
}

}  // namespace

at::Tensor to_fake(const at::Tensor& tensor, const ModePtr& mode, std::optional<c10::Device> device) {
  if (!tensor.defined() || as_fake(tensor) != nullptr) {
    return tensor;
  }
  check_convertible(tensor);
  const c10::Device claimed =
      normalize_device(device.value_or(tensor.is_meta() ? c10::Device(c10::kCPU) : tensor.device()));
  const c10::Storage storage = memo().find_or_make(tensor.storage(), claimed, mode.get(), [&] {
    c10::Storage made = at::detail::empty_meta({static_cast<int64_t>(tensor.storage().nbytes())}, c10::kByte).storage();
    adopt_storage(made, claimed, mode->options.storage_observer);
    return made;
  });
  c10::DispatchKeySet keys = key_set_for(claimed, tensor.scalar_type());
  at::Tensor fake = make_fake(
      storage, keys, tensor.dtype(), {tensor.sizes(), tensor.strides(), tensor.storage_offset()}, claimed, mode);
  fake._set_conj(tensor.is_conj());
  fake._set_neg(tensor.is_neg());
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    fake.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return fake;
}

}  // namespace torchfake
