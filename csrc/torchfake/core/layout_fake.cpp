// Fakes of layouts other than strided.
#include <torchfake/core/layout_fake.h>

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include <torchfake/core/errors.h>
#include <torchfake/core/fake_tensor_impl.h>
#include <torchfake/core/kernel_environment.h>
#include <torchfake/core/plain_cpu.h>

namespace torchfake {

namespace {

const at::SparseTensorImpl* sparse_impl(const at::Tensor& sparse) {
  return static_cast<const at::SparseTensorImpl*>(sparse.unsafeGetTensorImpl());
}

const at::SparseCsrTensorImpl* compressed_impl(const at::Tensor& sparse) {
  return static_cast<const at::SparseCsrTensorImpl*>(sparse.unsafeGetTensorImpl());
}

c10::DispatchKeySet keys_of(c10::Layout layout, c10::Device device, c10::ScalarType dtype) {
  const c10::DispatchKey backend = c10::computeDispatchKey(dtype, layout, device);
  c10::DispatchKeySet keys(backend);
  if (!KernelEnvironment::inference_mode()) {
    keys = keys | c10::getAutogradRelatedKeySetFromBackend(c10::toBackendComponent(backend));
  }
  return (keys | c10::getAutocastRelatedKeySetFromBackend(c10::toBackendComponent(backend)))
      .add(c10::DispatchKey::Fake);
}

// PyTorch's constructors of sparse tensors create the members of an empty one by operators, which the engine must not
// intercept. These members are replaced.
c10::intrusive_ptr<FakeSparseImpl> new_sparse(
    c10::DispatchKeySet keys,
    caffe2::TypeMeta dtype,
    c10::Device device,
    const ModePtr& mode) {
  PlainCpu no_engine;
  return c10::make_intrusive<FakeSparseImpl>(keys, dtype, device, mode);
}

c10::intrusive_ptr<FakeCompressedImpl> new_compressed(
    c10::DispatchKeySet keys,
    c10::Layout layout,
    caffe2::TypeMeta dtype,
    c10::Device device,
    const ModePtr& mode) {
  PlainCpu no_engine;
  return c10::make_intrusive<FakeCompressedImpl>(keys, layout, dtype, device, mode);
}

// Members carry no autograd state, as in PyTorch's own; they share the version counters.
at::Tensor detached(const at::Tensor& member) {
  return at::Tensor(member.unsafeGetTensorImpl()->shallow_copy_and_detach(
      member.unsafeGetTensorImpl()->version_counter(), /*allow_tensor_metadata_change=*/true));
}

bool python_sees_detach(c10::DispatchKeySet key_set) {
  return !c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::Python) &&
      (c10::impl::TorchDispatchModeTLS::stack_len() > 0 || key_set.has(c10::DispatchKey::Python));
}

[[noreturn]] void refuse_data() {
  at_the_boundary([] {
    raise(
        ErrorKind::kRealTensor,
        "set_data",
        "`fake.data = other` needs a fake of the same layout on the right side; convert it with torchfake.to_fake "
        "first.");
  });
  std::abort();  // not reached
}

}  // namespace

LayoutFake::LayoutFake(c10::Device claimed_device, ModePtr mode)
    : claimed_device_(claimed_device), mode_(std::move(mode)) {
  mode_->note_use();
}

c10::Device LayoutFake::current_device() const {
  return InKernel::active() ? c10::Device(c10::kMeta) : claimed_device_;
}

// ---- COO

FakeSparseImpl::FakeSparseImpl(
    c10::DispatchKeySet key_set,
    caffe2::TypeMeta dtype,
    c10::Device claimed_device,
    ModePtr mode)
    : at::SparseTensorImpl(c10::DispatchKeySet(c10::DispatchKey::SparseMeta), dtype),
      LayoutFake(claimed_device, std::move(mode)) {
  key_set_ = key_set - c10::python_ks;
  set_custom_device(true);
}

c10::Device FakeSparseImpl::device_custom() const {
  return current_device();
}

const char* FakeSparseImpl::tensorimpl_type_name() const {
  return "FakeSparseImpl";
}

void FakeSparseImpl::set_members(
    const at::SparseTensorImpl& other,
    const at::Tensor& indices,
    const at::Tensor& values) {
  raw_resize_(other.sparse_dim(), other.dense_dim(), other.sizes());
  indices_ = indices;
  values_ = values;
  coalesced_ = other.coalesced();
}

c10::intrusive_ptr<c10::TensorImpl> FakeSparseImpl::copy_and_detach(c10::VariableVersion version, bool allow_change)
    const {
  c10::intrusive_ptr<FakeSparseImpl> copy = new_sparse(key_set_, data_type_, claimed_device(), mode());
  TensorImpl::copy_tensor_metadata(this, copy.get(), std::move(version), /*allow_tensor_metadata_change=*/true);
  copy->sparse_dim_ = sparse_dim_;
  copy->dense_dim_ = dense_dim_;
  copy->indices_ = indices_;
  copy->values_ = values_;
  copy->coalesced_ = coalesced_;
  copy->refresh_numel();
  copy->set_allow_tensor_metadata_change(allow_change);
  return copy;
}

c10::intrusive_ptr<c10::TensorImpl> FakeSparseImpl::shallow_copy_and_detach(
    const c10::VariableVersion& version_counter,
    bool allow_tensor_metadata_change) const {
  return python_sees_detach(key_set_)
      ? at::SparseTensorImpl::shallow_copy_and_detach(version_counter, allow_tensor_metadata_change)
      : copy_and_detach(version_counter, allow_tensor_metadata_change);
}

c10::intrusive_ptr<c10::TensorImpl> FakeSparseImpl::shallow_copy_and_detach(
    c10::VariableVersion&& version_counter,
    bool allow_tensor_metadata_change) const {
  return python_sees_detach(key_set_)
      ? at::SparseTensorImpl::shallow_copy_and_detach(std::move(version_counter), allow_tensor_metadata_change)
      : copy_and_detach(std::move(version_counter), allow_tensor_metadata_change);
}

void FakeSparseImpl::shallow_copy_from(const c10::intrusive_ptr<c10::TensorImpl>& impl) {
  const auto* other = dynamic_cast<const FakeSparseImpl*>(impl.get());
  if (other == nullptr) {
    refuse_data();
  }
  at::SparseTensorImpl::shallow_copy_from(impl);
  LayoutFake::operator=(*other);
  set_custom_device(true);
}

// ---- CSR, CSC, BSR, BSC

FakeCompressedImpl::FakeCompressedImpl(
    c10::DispatchKeySet key_set,
    c10::Layout layout,
    caffe2::TypeMeta dtype,
    c10::Device claimed_device,
    ModePtr mode)
    : at::SparseCsrTensorImpl(
          c10::DispatchKeySet(c10::DispatchKey::SparseCsrMeta),
          c10::Device(c10::kMeta),
          layout,
          dtype),
      LayoutFake(claimed_device, std::move(mode)) {
  key_set_ = key_set - c10::python_ks;
  set_custom_device(true);
}

c10::Device FakeCompressedImpl::device_custom() const {
  return current_device();
}

const char* FakeCompressedImpl::tensorimpl_type_name() const {
  return "FakeCompressedImpl";
}

void FakeCompressedImpl::set_members(
    c10::IntArrayRef sizes,
    const at::Tensor& compressed_indices,
    const at::Tensor& plain_indices,
    const at::Tensor& values) {
  crow_indices_ = compressed_indices;
  col_indices_ = plain_indices;
  values_ = values;
  sizes_and_strides_.set_sizes(sizes);
  refresh_numel();
}

c10::intrusive_ptr<c10::TensorImpl> FakeCompressedImpl::copy_and_detach(c10::VariableVersion version, bool allow_change)
    const {
  c10::intrusive_ptr<FakeCompressedImpl> copy =
      new_compressed(key_set_, layout_impl(), data_type_, claimed_device(), mode());
  TensorImpl::copy_tensor_metadata(this, copy.get(), std::move(version), allow_change);
  copy->crow_indices_ = crow_indices_;
  copy->col_indices_ = col_indices_;
  copy->values_ = values_;
  copy->refresh_numel();
  return copy;
}

c10::intrusive_ptr<c10::TensorImpl> FakeCompressedImpl::shallow_copy_and_detach(
    const c10::VariableVersion& version_counter,
    bool allow_tensor_metadata_change) const {
  return python_sees_detach(key_set_)
      ? at::SparseCsrTensorImpl::shallow_copy_and_detach(version_counter, allow_tensor_metadata_change)
      : copy_and_detach(version_counter, allow_tensor_metadata_change);
}

c10::intrusive_ptr<c10::TensorImpl> FakeCompressedImpl::shallow_copy_and_detach(
    c10::VariableVersion&& version_counter,
    bool allow_tensor_metadata_change) const {
  return python_sees_detach(key_set_)
      ? at::SparseCsrTensorImpl::shallow_copy_and_detach(std::move(version_counter), allow_tensor_metadata_change)
      : copy_and_detach(std::move(version_counter), allow_tensor_metadata_change);
}

void FakeCompressedImpl::shallow_copy_from(const c10::intrusive_ptr<c10::TensorImpl>& impl) {
  const auto* other = dynamic_cast<const FakeCompressedImpl*>(impl.get());
  if (other == nullptr || other->layout_ != layout_) {
    refuse_data();
  }
  TensorImpl::shallow_copy_from(impl);
  crow_indices_ = other->crow_indices_;
  col_indices_ = other->col_indices_;
  values_ = other->values_;
  LayoutFake::operator=(*other);
  set_custom_device(true);
  refresh_numel();
}

// ---- Quantized

FakeQuantizedImpl::FakeQuantizedImpl(
    c10::Storage storage,
    c10::DispatchKeySet key_set,
    caffe2::TypeMeta dtype,
    at::QuantizerPtr quantizer,
    bool parameters_are_known,
    c10::Device claimed_device,
    ModePtr mode)
    : at::QTensorImpl(
          std::move(storage),
          c10::DispatchKeySet(c10::DispatchKey::QuantizedMeta),
          dtype,
          std::move(quantizer)),
      LayoutFake(claimed_device, std::move(mode)),
      parameters_are_known_(parameters_are_known) {
  key_set_ = key_set - c10::python_ks;
  set_custom_device(true);
}

c10::Device FakeQuantizedImpl::device_custom() const {
  return current_device();
}

const char* FakeQuantizedImpl::tensorimpl_type_name() const {
  return "FakeQuantizedImpl";
}

void FakeQuantizedImpl::set_parameters(at::QuantizerPtr quantizer, bool are_known) {
  set_quantizer_(std::move(quantizer));
  parameters_are_known_ = are_known;
}

c10::intrusive_ptr<c10::TensorImpl> FakeQuantizedImpl::copy_and_detach(c10::VariableVersion version, bool allow_change)
    const {
  auto copy = c10::make_intrusive<FakeQuantizedImpl>(
      c10::Storage(storage()), key_set_, data_type_, any_quantizer(), parameters_are_known_, claimed_device(), mode());
  TensorImpl::copy_tensor_metadata(this, copy.get(), std::move(version), allow_change);
  copy->refresh_numel();
  copy->refresh_contiguous();
  return copy;
}

c10::intrusive_ptr<c10::TensorImpl> FakeQuantizedImpl::shallow_copy_and_detach(
    const c10::VariableVersion& version_counter,
    bool allow_tensor_metadata_change) const {
  return python_sees_detach(key_set_)
      // Not the base's, which makes a real one.  NOLINTNEXTLINE(bugprone-parent-virtual-call)
      ? TensorImpl::shallow_copy_and_detach(version_counter, allow_tensor_metadata_change)
      : copy_and_detach(version_counter, allow_tensor_metadata_change);
}

c10::intrusive_ptr<c10::TensorImpl> FakeQuantizedImpl::shallow_copy_and_detach(
    c10::VariableVersion&& version_counter,
    bool allow_tensor_metadata_change) const {
  return python_sees_detach(key_set_)
      // NOLINTNEXTLINE(bugprone-parent-virtual-call)
      ? TensorImpl::shallow_copy_and_detach(std::move(version_counter), allow_tensor_metadata_change)
      : copy_and_detach(std::move(version_counter), allow_tensor_metadata_change);
}

void FakeQuantizedImpl::shallow_copy_from(const c10::intrusive_ptr<c10::TensorImpl>& impl) {
  const FakeQuantizedImpl* other = as_quantized_fake(impl.get());
  if (other == nullptr) {
    refuse_data();
  }
  at::QTensorImpl::shallow_copy_from(impl);
  LayoutFake::operator=(*other);
  parameters_are_known_ = other->parameters_are_known_;
  set_custom_device(true);
}

FakeQuantizedImpl* as_quantized_fake(const c10::TensorImpl* impl) {
  const bool is_one = impl->key_set().has(c10::DispatchKey::Fake) && typeid(*impl) == typeid(FakeQuantizedImpl);
  return is_one ? static_cast<FakeQuantizedImpl*>(const_cast<c10::TensorImpl*>(impl)) : nullptr;
}

at::Tensor make_quantized_fake(
    const c10::TensorImpl& like,
    c10::Storage storage,
    c10::ScalarType dtype,
    at::QuantizerPtr quantizer,
    bool parameters_are_known,
    c10::Device device,
    const ModePtr& mode) {
  auto impl = c10::make_intrusive<FakeQuantizedImpl>(
      std::move(storage),
      keys_of(c10::kStrided, device, dtype),
      c10::scalarTypeToTypeMeta(dtype),
      std::move(quantizer),
      parameters_are_known,
      device,
      mode);
  impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  return at::Tensor(std::move(impl));
}

// ---- All

LayoutFake* as_layout_fake(const c10::TensorImpl* impl) {
  if (!impl->key_set().has(c10::DispatchKey::Fake)) {
    return nullptr;
  }
  auto* tensor = const_cast<c10::TensorImpl*>(impl);
  if (typeid(*impl) == typeid(FakeSparseImpl)) {
    return static_cast<FakeSparseImpl*>(tensor);
  }
  if (typeid(*impl) == typeid(FakeQuantizedImpl)) {
    return static_cast<FakeQuantizedImpl*>(tensor);
  }
  return typeid(*impl) == typeid(FakeCompressedImpl) ? static_cast<FakeCompressedImpl*>(tensor) : nullptr;
}

bool is_any_fake(const at::TensorBase& tensor) {
  return tensor.defined() && (as_fake(tensor) != nullptr || as_layout_fake(tensor) != nullptr);
}

ModePtr mode_of_any(const at::TensorBase& tensor) {
  if (const FakeTensorImpl* fake = as_fake(tensor)) {
    return fake->mode();
  }
  const LayoutFake* fake = as_layout_fake(tensor);
  return fake == nullptr ? ModePtr() : fake->mode();
}

at::Tensor make_sparse_fake(
    int64_t sparse_dim,
    int64_t dense_dim,
    c10::IntArrayRef sizes,
    const at::Tensor& indices,
    const at::Tensor& values,
    bool coalesced,
    c10::Device device,
    const ModePtr& mode) {
  auto impl = new_sparse(keys_of(c10::kSparse, device, values.scalar_type()), values.dtype(), device, mode);
  impl->raw_resize_(sparse_dim, dense_dim, sizes);
  impl->indices_ = detached(indices);
  impl->values_ = detached(values);
  impl->coalesced_ = coalesced;
  return at::Tensor(std::move(impl));
}

at::Tensor make_compressed_fake(
    c10::Layout layout,
    c10::IntArrayRef sizes,
    const at::Tensor& compressed_indices,
    const at::Tensor& plain_indices,
    const at::Tensor& values,
    c10::Device device,
    const ModePtr& mode) {
  auto impl = new_compressed(keys_of(layout, device, values.scalar_type()), layout, values.dtype(), device, mode);
  impl->set_members(sizes, detached(compressed_indices), detached(plain_indices), detached(values));
  return at::Tensor(std::move(impl));
}

at::Tensor make_layout_fake(const at::Tensor& like, at::TensorList members, c10::Device device, const ModePtr& mode) {
  if (like.layout() == c10::kSparse) {
    const at::SparseTensorImpl& impl = *sparse_impl(like);
    return make_sparse_fake(
        impl.sparse_dim(), impl.dense_dim(), like.sizes(), members[0], members[1], impl.coalesced(), device, mode);
  }
  return make_compressed_fake(like.layout(), like.sizes(), members[0], members[1], members[2], device, mode);
}

std::vector<at::Tensor> members_of(const at::Tensor& sparse) {
  if (sparse.layout() == c10::kSparse) {
    const at::SparseTensorImpl& impl = *sparse_impl(sparse);
    return {impl.indices(), impl.values()};
  }
  const at::SparseCsrTensorImpl& impl = *compressed_impl(sparse);
  return {impl.compressed_indices(), impl.plain_indices(), impl.values()};
}

void set_members(const at::Tensor& fake, const at::Tensor& like, at::TensorList members) {
  if (like.layout() == c10::kSparse) {
    static_cast<FakeSparseImpl*>(fake.unsafeGetTensorImpl())->set_members(*sparse_impl(like), members[0], members[1]);
  } else {
    static_cast<FakeCompressedImpl*>(fake.unsafeGetTensorImpl())
        ->set_members(like.sizes(), members[0], members[1], members[2]);
  }
}

}  // namespace torchfake
