// The fake tensor: a TensorImpl over a meta storage that claims another device.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <torchfake/core/call_context.h>
#include <torchfake/core/fake_mode.h>
#include <torchfake/core/geometry.h>
#include <torchfake/core/recycled.h>
#include <torchfake/core/value_memos.h>

namespace torchfake {

class FakeTensorImpl final : public c10::TensorImpl, public Recycled<FakeTensorImpl> {
 public:
  // A fake over `storage` with exactly `key_set`; a view uses that of its base.
  FakeTensorImpl(
      c10::Storage&& storage,
      c10::DispatchKeySet key_set,
      caffe2::TypeMeta dtype,
      c10::Device claimed_device,
      ModePtr mode);
  ~FakeTensorImpl() override;
  FakeTensorImpl(const FakeTensorImpl&) = delete;
  FakeTensorImpl& operator=(const FakeTensorImpl&) = delete;
  FakeTensorImpl(FakeTensorImpl&&) = delete;
  FakeTensorImpl& operator=(FakeTensorImpl&&) = delete;

  // A fake that is only weakly referenced, by a converter's memo, must not keep its mode alive.
  void release_resources() override;

  c10::Device claimed_device() const noexcept {
    return claimed_device_;
  }
  const ModePtr& mode() const noexcept {
    return mode_;
  }

  // Memorised results of operators that read the values, valid while the values are unchanged. Inference tensors have
  // no version counter and memorise nothing.
  std::optional<c10::Scalar> memo(ValueMemos::Kind kind) const;
  void set_memo(ValueMemos::Kind kind, c10::Scalar value);

  // Whether sizes and strides are plain numbers stored in the tensor itself: neither symbolic nor overridden by Python.
  bool has_plain_geometry() const noexcept {
    return !matches_policy(SizesStridesPolicy::CustomStrides);
  }
  // Both require a plain geometry.
  FakeGeometry geometry() const;
  void set_geometry(const FakeGeometry& geometry);

  // What sizes() and strides() return for a plain geometry, without checking that it is.
  const c10::impl::SizesAndStrides& plain_sizes_and_strides() const noexcept {
    return sizes_and_strides_;
  }
  // Null if there is none.
  c10::StorageImpl* storage_impl() const noexcept {
    return storage_.unsafeGetStorageImpl();
  }

  // For detach(), .data, saved variables.
  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(
      const c10::VariableVersion& version_counter,
      bool allow_tensor_metadata_change) const override;
  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(
      c10::VariableVersion&& version_counter,
      bool allow_tensor_metadata_change) const override;
  // x.data = y. Throws RealTensorError, with nothing changed, if `impl` is not a fake.
  void shallow_copy_from(const c10::intrusive_ptr<c10::TensorImpl>& impl) override;

 protected:
  c10::Device device_custom() const override;
  // See Note [Sizes read as numbers].
  c10::IntArrayRef sizes_custom() const override;
  c10::IntArrayRef strides_custom() const override;
  int64_t size_custom(int64_t dim) const override;
  int64_t numel_custom() const override;
  int64_t storage_offset_custom() const override;
  // A tensor whose strides are the products of its sizes is contiguous, whether or not a size is one: PyTorch's own
  // functions ask that first, which would guard it.
  c10::SymBool sym_is_contiguous_custom(at::MemoryFormat memory_format) const override;
  c10::SymBool sym_is_non_overlapping_and_dense_custom() const override;
  const char* tensorimpl_type_name() const override;

 private:
  template <typename Version>
  c10::intrusive_ptr<c10::TensorImpl> copy_and_detach(Version&& version, bool allow_metadata_change) const;

  c10::Device claimed_device_;
  ModePtr mode_;
  std::unique_ptr<ValueMemos> memos_;  // most fakes have none
  // What sizes() and strides() return for symbols, if they were asked for.
  struct ReadNumbers {
    std::vector<int64_t> sizes;
    std::vector<int64_t> strides;
  };
  c10::IntArrayRef read_as_numbers(c10::SymIntArrayRef values, std::vector<int64_t> ReadNumbers::* place) const;
  mutable std::unique_ptr<ReadNumbers> read_numbers_;
};

// The fake behind a tensor, or null. Tests the type rather than the key: a plain TensorImpl may have copied a fake's
// keys.
inline FakeTensorImpl* as_fake(const c10::TensorImpl* impl) {
  // Most tensors asked about are fakes, so the exact type is compared first; the class is final.
  return impl->key_set().has(c10::DispatchKey::Fake) && typeid(*impl) == typeid(FakeTensorImpl)
      ? const_cast<FakeTensorImpl*>(static_cast<const FakeTensorImpl*>(impl))
      : nullptr;
}

inline FakeTensorImpl* as_fake(const at::TensorBase& tensor) {
  return as_fake(tensor.unsafeGetTensorImpl());
}

// The keys of a new fake on `device`: those of the claimed backend and Fake. In inference mode the autograd keys are
// omitted, as in PyTorch.
c10::DispatchKeySet key_set_for(c10::Device device, c10::ScalarType dtype);

// `device` with an index: `cuda` becomes the current device of that type, `cpu` and `meta` stay as they are. Throws
// DeviceNotFakedError for an index that no device can have.
c10::Device normalize_device(c10::Device device);

// The type of the last accelerator that a fake of this thread has claimed; CUDA if there is none.
c10::DeviceType last_claimed_accelerator();

// One more than the highest device index that a fake of this process has claimed.
c10::DeviceIndex claimed_device_count();

// A fake with the given key set over a storage that fakes already use (or that adopt_storage was called on).
at::Tensor make_fake(
    c10::Storage storage,
    c10::DispatchKeySet key_set,
    caffe2::TypeMeta dtype,
    const GeometryRef& geometry,
    c10::Device device,
    const ModePtr& mode);

// As above, with a precomputed geometry.
at::Tensor make_fake(
    c10::Storage storage,
    c10::DispatchKeySet key_set,
    caffe2::TypeMeta dtype,
    const FakeGeometry& geometry,
    c10::Device device,
    const ModePtr& mode);

}  // namespace torchfake
