// Real CPU tensors used alongside fakes.
#include <torchfake/core/plain_cpu.h>

#include <ATen/ops/zeros.h>

namespace torchfake {

namespace {

c10::impl::LocalDispatchKeySet plain_keys() {
  c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
  keys.included_ = c10::DispatchKeySet(c10::DispatchKey::BackendSelect);
  keys.excluded_ = c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset |
      c10::DispatchKeySet(c10::DispatchKey::Python) | c10::DispatchKeySet(c10::DispatchKey::PythonTLSSnapshot) |
      c10::DispatchKeySet(c10::DispatchKey::Fake);
  return keys;
}

}  // namespace

PlainCpu::PlainCpu() : guard_(plain_keys()) {}

at::Tensor cpu_tensor_over(c10::intrusive_ptr<c10::StorageImpl> bytes, const c10::TensorImpl& like) {
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(std::move(bytes)), c10::DispatchKeySet(c10::DispatchKey::CPU), like.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  if (like.is_wrapped_number()) {
    tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  tensor._set_conj(like.is_conj());
  tensor._set_neg(like.is_neg());
  return tensor;
}

c10::intrusive_ptr<c10::StorageImpl> zero_bytes(size_t nbytes) {
  PlainCpu plain;
  at::Tensor zeros = at::zeros({static_cast<int64_t>(nbytes)}, at::TensorOptions().dtype(c10::kByte).device(c10::kCPU));
  return zeros.storage().getWeakStorageImpl().lock();
}

}  // namespace torchfake
