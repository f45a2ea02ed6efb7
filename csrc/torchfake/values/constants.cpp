// Constant propagation: the values of outputs computed from constants.
#include <torchfake/values/constants.h>

#include <c10/core/CPUAllocator.h>

#include <torchfake/core/plain_cpu.h>
#include <torchfake/core/to_fake.h>
#include <torchfake/core/weak_memo.h>
#include <torchfake/values/known_values.h>

#include <cstring>
#include <mutex>
#include <unordered_map>

namespace torchfake {

namespace {

constexpr size_t kMostBytes = 16384;
constexpr size_t kMostSourceBytes = 1024;

c10::intrusive_ptr<c10::StorageImpl> new_bytes(size_t nbytes) {
  return c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(),
      c10::SymInt(static_cast<int64_t>(nbytes)),
      c10::GetCPUAllocator(),
      /*resizable=*/true);
}

c10::intrusive_ptr<c10::StorageImpl> copy_of(const c10::StorageImpl& bytes, size_t nbytes) {
  c10::intrusive_ptr<c10::StorageImpl> copy = new_bytes(nbytes);
  std::memcpy(copy->mutable_data(), bytes.data(), nbytes);
  return copy;
}

// Whether the values of the single output depend on non-tensor arguments only.
bool follows_from_arguments(const Call& call) {
  const OpTraits& traits = call.traits;
  const bool is_made = traits.values == ValueSource::kConstant && !traits.mutates;
  const bool is_overwritten = traits.values == ValueSource::kOverwrite && call.tensors().size() == 1;
  return (is_made || is_overwritten) && !traits.reads_files && traits.num_returns == 1 &&
      outputs_of(call).front().isTensor();
}

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
    Storage copy = copy_of(bytes, bytes.nbytes());
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
  if (bytes == nullptr || bytes->nbytes() == 0 || bytes->nbytes() > kMostBytes) {
    PlainCpu plain;
    return values.clone();
  }
  static auto* copies = new Copies();
  return cpu_tensor_over(copies->of(fake.storage_impl(), *bytes), fake);
}

void SourceBytes::add(const void* data, size_t nbytes) {
  const auto* begin = static_cast<const char*>(data);
  bytes_.append(begin, begin + nbytes);
}

bool SourceBytes::add_tensor(const TensorArg& tensor) {
  if (tensor.fake == nullptr) {  // a wrapped number
    const bool is_number = tensor.impl->is_wrapped_number() && tensor.impl->numel() == 1;
    if (is_number) {
      add(tensor.impl->data(), tensor.impl->itemsize());
    }
    return is_number;
  }
  c10::StorageImpl* storage = storage_of(*tensor.fake);
  const c10::StorageImpl* known = storage == nullptr ? nullptr : known_bytes(storage);
  if (known == nullptr || bytes_.size() + known->nbytes() > kMostSourceBytes) {
    return false;
  }
  const int64_t offset = tensor.fake->storage_offset();
  add(&offset, sizeof(offset));
  add(known->data(), known->nbytes());
  return true;
}

bool SourceBytes::read(const Call& call) {
  for (const TensorArg& tensor : call.tensors()) {
    if (!add_tensor(tensor)) {
      bytes_.clear();
      return false;
    }
  }
  for (size_t i = 0; i < call.num_args(); ++i) {
    const c10::IValue& value = call.arg(i);
    if (!call.traits.args[i].scales_only) {
      continue;
    }
    if (value.isInt()) {
      const int64_t factor = value.toInt();
      add(&factor, sizeof(factor));
    } else if (value.isDouble()) {
      const double factor = value.toDouble();
      add(&factor, sizeof(factor));
    } else if (value.isList()) {
      bytes_.clear();
      return false;
    }
  }
  return !bytes_.empty();
}

bool SourceBytes::are_kept_in(const c10::StorageImpl& constant, size_t nbytes) const {
  return constant.nbytes() == nbytes + bytes_.size() &&
      std::memcmp(static_cast<const char*>(constant.data()) + nbytes, bytes_.data(), bytes_.size()) == 0;
}

c10::intrusive_ptr<c10::StorageImpl> constant_of(const Call& call, const SourceBytes& sources) {
  if (sources.empty() && !follows_from_arguments(call)) {
    return {};
  }
  const at::Tensor& output = outputs_of(call).front().toTensor();
  const FakeTensorImpl* fake = output.defined() ? as_fake(output) : nullptr;
  const c10::StorageImpl* bytes = fake == nullptr || !fake->has_storage() ? nullptr : known_bytes(fake->storage_impl());
  const bool is_kept = bytes != nullptr && bytes->nbytes() > 0 && bytes->nbytes() <= kMostBytes && fills_storage(*fake);
  if (!is_kept) {
    return {};
  }
  const size_t nbytes = bytes->nbytes();
  c10::intrusive_ptr<c10::StorageImpl> constant = new_bytes(nbytes + sources.bytes().size());
  auto* data = static_cast<char*>(constant->mutable_data());
  std::memcpy(data, bytes->data(), nbytes);
  std::copy(sources.bytes().begin(), sources.bytes().end(), data + nbytes);
  return constant;
}

void give_constant(const FakeTensorImpl& output, const c10::StorageImpl& constant, size_t nbytes) {
  if (C10_LIKELY(has_room_for(output, nbytes))) {
    set_known_bytes(output.storage_impl(), output.claimed_device(), copy_of(constant, nbytes));
  }
}

bool is_covered_by(const FakeTensorImpl& fake, const c10::StorageImpl& constant) {
  return fills_storage(fake) && fake.storage_impl()->nbytes() == constant.nbytes();
}

void overwrite_with_constant(const FakeTensorImpl& fake, const c10::StorageImpl& constant) {
  c10::StorageImpl* storage = fake.storage_impl();
  c10::StorageImpl* bytes = partly_known_bytes(storage);
  if (bytes == nullptr) {
    forget_known_bytes(storage);
    return give_constant(fake, constant, constant.nbytes());
  }
  std::memcpy(bytes->mutable_data(), constant.data(), constant.nbytes());
  if (storage_context(storage)->unknown) {
    complete_known_bytes(storage);
  }
}

}  // namespace torchfake
