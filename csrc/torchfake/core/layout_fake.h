// Fakes of layouts other than strided: sparse tensors whose indices and values are fakes, and quantized tensors.
#pragma once

#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/quantized/QTensorImpl.h>

#include <torchfake/core/fake_mode.h>

namespace torchfake {

// Note [Fakes of other layouts]
// PyTorch's kernels cast a sparse tensor to at::SparseTensorImpl (COO) or at::SparseCsrTensorImpl (CSR, CSC, BSR, BSC)
// without a check, so a sparse fake is a subclass of these. It holds no data itself: its indices and values are strided
// fakes of the same mode, on the device that it claims.
//
//   s = torch.sparse_coo_tensor(i, v, (4, 5))   # s._indices() and s._values() are fakes
//   s.device                                    # the device that i and v claim
//
// Invariants. If the number of stored elements depends on unknown values, it is a symbol in a mode with a shape environment
// (dispatch/stored_counts.h), and the call is refused in any other. The sizes of the tensor itself are numbers. A sparse fake is not a FakeTensorImpl: as_fake() of it is null, so the steps for strided fakes never
// meet one and pay nothing for their existence. Calls with one take a separate route (dispatch/layout_call.h).
// Rejected: one class for all layouts. The kernels that read indices and values cast to PyTorch's own classes.
class LayoutFake {
 public:
  LayoutFake(c10::Device claimed_device, ModePtr mode);

  c10::Device claimed_device() const noexcept {
    return claimed_device_;
  }
  const ModePtr& mode() const noexcept {
    return mode_;
  }

 protected:
  ~LayoutFake() = default;
  LayoutFake(const LayoutFake&) = default;
  LayoutFake& operator=(const LayoutFake&) = default;

  // What device() returns: meta inside a kernel, as for strided fakes.
  c10::Device current_device() const;

 private:
  c10::Device claimed_device_;
  ModePtr mode_;
};

// Sparse COO.
class FakeSparseImpl final : public at::SparseTensorImpl, public LayoutFake {
 public:
  FakeSparseImpl(c10::DispatchKeySet key_set, caffe2::TypeMeta dtype, c10::Device claimed_device, ModePtr mode);

  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(
      const c10::VariableVersion& version_counter,
      bool allow_tensor_metadata_change) const override;
  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(
      c10::VariableVersion&& version_counter,
      bool allow_tensor_metadata_change) const override;
  // x.data = y. Throws RealTensorError, with nothing changed, if `impl` is not a sparse COO fake.
  void shallow_copy_from(const c10::intrusive_ptr<c10::TensorImpl>& impl) override;

  // Takes over sizes, dimensions, flag, indices and values.
  void set_members(const at::SparseTensorImpl& other, const at::Tensor& indices, const at::Tensor& values);

 protected:
  c10::Device device_custom() const override;

 private:
  const char* tensorimpl_type_name() const override;
  c10::intrusive_ptr<c10::TensorImpl> copy_and_detach(c10::VariableVersion version, bool allow_change) const;
};

// Sparse CSR, CSC, BSR and BSC.
class FakeCompressedImpl final : public at::SparseCsrTensorImpl, public LayoutFake {
 public:
  FakeCompressedImpl(
      c10::DispatchKeySet key_set,
      c10::Layout layout,
      caffe2::TypeMeta dtype,
      c10::Device claimed_device,
      ModePtr mode);

  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(
      const c10::VariableVersion& version_counter,
      bool allow_tensor_metadata_change) const override;
  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(
      c10::VariableVersion&& version_counter,
      bool allow_tensor_metadata_change) const override;
  void shallow_copy_from(const c10::intrusive_ptr<c10::TensorImpl>& impl) override;

  void set_members(
      c10::IntArrayRef sizes,
      const at::Tensor& compressed_indices,
      const at::Tensor& plain_indices,
      const at::Tensor& values);

 protected:
  c10::Device device_custom() const override;

 private:
  const char* tensorimpl_type_name() const override;
  c10::intrusive_ptr<c10::TensorImpl> copy_and_detach(c10::VariableVersion version, bool allow_change) const;
};

// Quantized: strided like any tensor, over a fake's storage, with a quantizer. If its parameters (scale and zero point)
// would depend on unknown values, it has placeholder parameters.
class FakeQuantizedImpl final : public at::QTensorImpl, public LayoutFake {
 public:
  FakeQuantizedImpl(
      c10::Storage storage,
      c10::DispatchKeySet key_set,
      caffe2::TypeMeta dtype,
      at::QuantizerPtr quantizer,
      bool parameters_are_known,
      c10::Device claimed_device,
      ModePtr mode);

  bool parameters_are_known() const noexcept {
    return parameters_are_known_;
  }
  at::QuantizerPtr any_quantizer() const {
    return const_cast<FakeQuantizedImpl*>(this)->quantizer();
  }

  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(
      const c10::VariableVersion& version_counter,
      bool allow_tensor_metadata_change) const override;
  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(
      c10::VariableVersion&& version_counter,
      bool allow_tensor_metadata_change) const override;
  void shallow_copy_from(const c10::intrusive_ptr<c10::TensorImpl>& impl) override;

  // The effect of an in-place operator.
  void set_parameters(at::QuantizerPtr quantizer, bool are_known);

 protected:
  c10::Device device_custom() const override;

 private:
  const char* tensorimpl_type_name() const override;
  c10::intrusive_ptr<c10::TensorImpl> copy_and_detach(c10::VariableVersion version, bool allow_change) const;

  bool parameters_are_known_;
};

// The quantized fake behind a tensor, or null.
FakeQuantizedImpl* as_quantized_fake(const c10::TensorImpl* impl);
inline FakeQuantizedImpl* as_quantized_fake(const at::TensorBase& tensor) {
  return as_quantized_fake(tensor.unsafeGetTensorImpl());
}

// A quantized fake with the geometry of `like` over `storage`, the storage of a fake on `device`.
at::Tensor make_quantized_fake(
    const c10::TensorImpl& like,
    c10::Storage storage,
    c10::ScalarType dtype,
    at::QuantizerPtr quantizer,
    bool parameters_are_known,
    c10::Device device,
    const ModePtr& mode);

// The fake of another layout behind a tensor, or null.
LayoutFake* as_layout_fake(const c10::TensorImpl* impl);
inline LayoutFake* as_layout_fake(const at::TensorBase& tensor) {
  return as_layout_fake(tensor.unsafeGetTensorImpl());
}

// Whether the tensor is a fake of any layout.
bool is_any_fake(const at::TensorBase& tensor);

// The mode of a fake of any layout; null for a real tensor.
ModePtr mode_of_any(const at::TensorBase& tensor);

// Whether this is one of the sparse layouts.
inline bool is_sparse_layout(c10::Layout layout) {
  return layout == c10::kSparse || layout == c10::kSparseCsr || layout == c10::kSparseCsc ||
      layout == c10::kSparseBsr || layout == c10::kSparseBsc;
}

// A sparse fake with the sizes, dimensions and flags of `like`, a sparse tensor of any kind, and the given members:
// indices and values, or compressed indices, plain indices and values. The members are fakes on `device`.
at::Tensor make_layout_fake(const at::Tensor& like, at::TensorList members, c10::Device device, const ModePtr& mode);

// As above, from plain numbers instead of a sparse tensor.
at::Tensor make_sparse_fake(
    int64_t sparse_dim,
    int64_t dense_dim,
    c10::IntArrayRef sizes,
    const at::Tensor& indices,
    const at::Tensor& values,
    bool coalesced,
    c10::Device device,
    const ModePtr& mode);
at::Tensor make_compressed_fake(
    c10::Layout layout,
    c10::IntArrayRef sizes,
    const at::Tensor& compressed_indices,
    const at::Tensor& plain_indices,
    const at::Tensor& values,
    c10::Device device,
    const ModePtr& mode);

// The indices and values of a sparse COO tensor; the compressed indices, plain indices and values of the others.
std::vector<at::Tensor> members_of(const at::Tensor& sparse);

// Gives a sparse fake the sizes and members of another sparse tensor: the effect of an in-place operator.
void set_members(const at::Tensor& fake, const at::Tensor& like, at::TensorList members);

}  // namespace torchfake
