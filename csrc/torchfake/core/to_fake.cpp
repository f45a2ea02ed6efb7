// Converts real (or meta) tensors to fakes, preserving aliases.
#include <torchfake/core/to_fake.h>

#include <ATen/EmptyTensor.h>

#include <torchfake/core/errors.h>
#include <torchfake/core/layout_fake.h>
#include <torchfake/core/plain_cpu.h>
#include <torchfake/core/weak_memo.h>

namespace torchfake {

namespace {

using StorageMemo = WeakMemo<c10::StorageImpl>;

c10::intrusive_ptr<c10::StorageImpl> impl_of(const c10::Storage& storage) {
  return c10::intrusive_ptr<c10::StorageImpl>::unsafe_reclaim_from_nonowning(storage.unsafeGetStorageImpl());
}

c10::Storage new_meta_storage(size_t nbytes) {
  return at::detail::empty_meta({static_cast<int64_t>(nbytes)}, c10::kByte).storage();
}

// The storage that stands for `source`, created if there is none.
template <typename Prepare>
c10::Storage find_or_make(
    StorageMemo& memo,
    const StorageMemo::Key& key,
    const c10::Storage& source,
    const Prepare& prepare) {
  if (c10::intrusive_ptr<c10::StorageImpl> found = memo.find(key)) {
    return c10::Storage(std::move(found));
  }
  c10::Storage made = new_meta_storage(source.nbytes());
  prepare(made);
  return c10::Storage(memo.remember_first(key, impl_of(source), impl_of(made)));
}

void check_convertible(const at::Tensor& tensor) {
  const auto refuse = [](const char* what) {
    raise(
        ErrorKind::kUnsupportedFakeTensor,
        "to_fake",
        std::string(what) + " tensors cannot be faked; strided, sparse and quantized ones can.");
  };
  if (tensor.layout() != c10::kStrided) {
    refuse(tensor.layout() == c10::kJagged || tensor.is_nested() ? "nested" : "such");
  }
  if (tensor.is_nested()) {
    refuse("nested");
  }
  if (!tensor.has_storage()) {
    refuse("storage-less");
  }
  if (tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides()) {
    refuse("symbolic-sized");
  }
}

// Real values are kept along with the fake if the mode propagates them.
void copy_values(const c10::Storage& real, const c10::Storage& fake, c10::Device device) {
  if (real.device().is_cpu() && real.data() != nullptr) {
    c10::intrusive_ptr<c10::StorageImpl> bytes = zero_bytes(real.nbytes());
    std::memcpy(bytes->mutable_data(), real.data(), real.nbytes());
    set_known_bytes(fake.unsafeGetStorageImpl(), device, std::move(bytes));
  }
}

}  // namespace

namespace {

// The storages of fakes that stand for real ones.
StorageMemo& fake_storages() {
  static auto* memo = new StorageMemo();  // never destroyed: fakes may outlive static storage
  return *memo;
}

// Copies of values that were handed out, and the storages of the fakes they were copied from.
StorageMemo& copied_values() {
  static auto* memo = new StorageMemo();
  return *memo;
}

}  // namespace

void remember_copy(const at::Tensor& fake, const at::Tensor& copy) {
  copied_values().remember(
      {copy.storage().unsafeGetStorageImpl(), nullptr, c10::kCPU}, impl_of(copy.storage()), impl_of(fake.storage()));
}

void forget_values_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) {
    return;
  }
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  if (as_fake(tensor) != nullptr) {
    return forget_known_bytes(storage);
  }
  for (StorageMemo* memo : {&fake_storages(), &copied_values()}) {
    for (const c10::intrusive_ptr<c10::StorageImpl>& fake : memo->find_all(storage)) {
      forget_known_bytes(fake.get());
    }
  }
}

namespace {

at::Tensor make_sparse_fake_of(const at::Tensor& tensor, const ModePtr& mode, c10::Device device) {
  std::vector<at::Tensor> members;
  for (const at::Tensor& member : members_of(tensor)) {
    members.push_back(make_fake_of(member, mode, device));
  }
  return make_layout_fake(tensor, members, device, mode);
}

}  // namespace

at::Tensor make_fake_of(const at::Tensor& tensor, const ModePtr& mode, c10::Device device) {
  TORCH_CHECK_VALUE(mode && tensor.defined(), "to_fake: expected a tensor and a mode, got none");
  if (is_sparse_layout(tensor.layout())) {
    return make_sparse_fake_of(tensor, mode, device);
  }
  check_convertible(tensor);
  const c10::Storage& real = tensor.storage();
  const c10::Storage storage = find_or_make(
      fake_storages(), {real.unsafeGetStorageImpl(), mode.get(), device}, real, [&](const c10::Storage& made) {
        adopt_storage(made, device, mode->options.storage_observer);
        if (mode->options.propagate_real_tensors) {
          copy_values(real, made, device);
        }
      });
  if (tensor.is_quantized()) {
    const at::QuantizerPtr quantizer = at::get_qtensorimpl(tensor)->quantizer();
    return make_quantized_fake(
        *tensor.unsafeGetTensorImpl(),
        storage,
        tensor.scalar_type(),
        quantizer,
        /*parameters_are_known=*/true,
        device,
        mode);
  }
  at::Tensor fake = make_fake(
      storage,
      key_set_for(device, tensor.scalar_type()),
      tensor.dtype(),
      {tensor.sizes(), tensor.strides(), tensor.storage_offset()},
      device,
      mode);
  fake._set_conj(tensor.is_conj());
  fake._set_neg(tensor.is_neg());
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    fake.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return fake;
}

at::Tensor to_fake(const at::Tensor& tensor, const ModePtr& mode, std::optional<c10::Device> device) {
  if (!tensor.defined() || is_any_fake(tensor)) {
    return tensor;
  }
  TORCH_CHECK_VALUE(mode, "to_fake: expected a mode, got none");
  mode->note_use();  // first: the guard that this installs knows the current device of an absent type
  return make_fake_of(
      tensor, mode, normalize_device(device.value_or(tensor.is_meta() ? c10::Device(c10::kCPU) : tensor.device())));
}

at::Tensor to_meta(const at::Tensor& fake) {
  check_convertible(fake);
  TORCH_CHECK_NOT_IMPLEMENTED(!fake.is_quantized(), "a quantized fake has no meta tensor in its place");
  static auto* memo = new StorageMemo();
  const c10::Storage& source = fake.storage();
  const c10::Storage storage =
      find_or_make(*memo, {source.unsafeGetStorageImpl(), nullptr, c10::kMeta}, source, [](const c10::Storage&) {});
  at::Tensor meta = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), c10::DispatchKeySet(c10::DispatchKey::Meta), fake.dtype());
  meta.unsafeGetTensorImpl()->set_sizes_and_strides(fake.sizes(), fake.strides(), fake.storage_offset());
  meta._set_conj(fake.is_conj());
  meta._set_neg(fake.is_neg());
  return meta;
}

}  // namespace torchfake
