// Rules for storages: views with arbitrary geometry, which real kernels keep within the storage, and pinned memory.
#include <ATen/InferSize.h>
#include <ATen/TensorUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/from_blob.h>

#include <torchfake/core/errors.h>
#include <torchfake/rules/rules.h>
#include <torchfake/values/known_values.h>

namespace torchfake {

namespace {

// Throws the error of PyTorch's kernels, which check this before the storage.
void check_not_negative(c10::IntArrayRef strides) {
  for (const int64_t stride : strides) {
    TORCH_CHECK(stride >= 0, "as_strided: Negative strides are not supported at the moment, got strides: ", strides);
  }
}

void check_bounds(const at::Tensor& tensor, c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t offset) {
  if (sizes.size() == strides.size()) {  // otherwise the kernel raises its own error
    at::native::checkInBoundsForStorage(sizes, strides, offset, tensor.dtype(), tensor.storage());
  }
}

// as_strided(self, size, stride, storage_offset=None), and in place
RuleResult as_strided(Call& call, const ModePtr& /*mode*/) {
  const at::Tensor self = call.arg(0).toTensor();
  const int64_t offset = call.arg(3).isNone() ? self.storage_offset() : call.arg(3).toInt();
  const std::vector<int64_t> sizes = call.arg(1).toIntVector();
  const std::vector<int64_t> strides = call.arg(2).toIntVector();
  if (sizes.size() == strides.size()) {  // otherwise the kernel raises its own error
    check_not_negative(strides);
  }
  check_bounds(self, sizes, strides, offset);
  return RuleResult::kContinue;
}

// _pin_memory(self, device=None): a copy in another kind of host memory, with the same strides.
RuleResult pin_memory(Call& call, const ModePtr& /*mode*/) {
  const at::Tensor self = call.arg(0).toTensor();
  TORCH_CHECK(self.is_cpu(), "cannot pin a tensor on ", self.device(), "; only dense CPU tensors can be pinned");
  at::Tensor copy = self.clone(at::MemoryFormat::Preserve);
  return answer_with(call, std::move(copy));
}

// _lazy_clone(self): a copy of the whole storage, with the geometry of the original. A real one copies on write.
RuleResult lazy_clone(Call& call, const ModePtr& /*mode*/) {
  const at::Tensor self = call.arg(0).toTensor();
  const auto elements = static_cast<int64_t>(self.storage().nbytes() / self.itemsize());
  at::Tensor copy = self.as_strided({elements}, {1}, 0).clone();
  return answer_with(call, copy.as_strided(self.sizes(), self.strides(), self.storage_offset()));
}

// A real kernel grows a storage that is too small, unless the tensor already has these sizes and strides. In that case
// the bounds are checked here.
void check_bounds_of(
    const at::Tensor& self,
    const c10::Storage& storage,
    int64_t offset,
    c10::IntArrayRef sizes,
    c10::IntArrayRef strides) {
  const c10::IntArrayRef steps = strides.empty() ? c10::IntArrayRef() : strides;
  if (self.sizes() == sizes && (strides.empty() || self.strides() == steps)) {
    at::native::checkInBoundsForStorage(sizes, steps, offset, self.dtype(), storage);
  }
}

// For set_(self, source, storage_offset, size, stride).
void check_bounds_of(const Call& call, const c10::Storage& storage) {
  check_bounds_of(
      call.arg(0).toTensor(), storage, call.arg(2).toInt(), call.arg(3).toIntVector(), call.arg(4).toIntVector());
}

// _new_zeros_with_same_feature_meta(self, other, *, self_num_batch_dims) uses that many sizes of `self`
RuleResult check_batch_dims(Call& call, const ModePtr& /*mode*/) {
  const int64_t dims = call.arg(0).toTensor().dim();
  const int64_t batch_dims = call.arg(2).toInt();
  TORCH_CHECK(
      0 <= batch_dims && batch_dims <= dims, "expected 0 to ", dims, " batch dimensions of self, but got ", batch_dims);
  return RuleResult::kContinue;
}

// view(self, size) in a FakeTensorMode: raises a ValueError, like PyTorch's fakes. Real tensors raise a RuntimeError.
RuleResult check_view(Call& call, const ModePtr& mode) {
  if (!mode->options.exclusive) {
    return RuleResult::kContinue;
  }
  const at::Tensor self = call.arg(0).toTensor();
  const at::DimVector sizes = at::infer_size_dv(call.arg(1).toIntVector(), self.numel());
  TORCH_CHECK_VALUE(
      at::detail::computeStride(self.sizes(), self.strides(), sizes).has_value(),
      call.op_name(),
      ": Cannot view a tensor with shape ",
      self.sizes(),
      " and strides ",
      self.strides(),
      " as a tensor with shape ",
      sizes,
      "; reshape copies it where it has to.");
  return RuleResult::kContinue;
}

// set_(self, source), optionally with storage_offset, size and stride: uses the storage of a tensor
RuleResult set_tensor(Call& call, const ModePtr& /*mode*/) {
  const at::Tensor source = call.arg(1).toTensor();
  if (!source.defined() || !source.has_storage()) {
    return RuleResult::kContinue;
  }
  if (call.num_args() == 5) {
    check_bounds_of(call, source.storage());
  } else {
    check_bounds_of(
        call.arg(0).toTensor(), source.storage(), source.storage_offset(), source.sizes(), source.strides());
  }
  return RuleResult::kContinue;
}

// The functional forms of set_ exist for functionalisation, which supplies storages of its own.
RuleResult refuse_copies_of_storages(Call& call, const ModePtr& /*mode*/) {
  raise(
      ErrorKind::kUnsupportedOperator,
      call.op_name(),
      "it makes a tensor over a storage, which a fake does not copy. Call set_ on a clone.");
}

// set_(self, source, ...) with the storage of a real tensor: `torch.ByteTensor(storage)` makes a fake of it.
RuleResult set_storage(Call& call, const ModePtr& mode) {
  const c10::Storage storage = call.arg(1).toStorage();
  if (call.num_args() == 5) {  // (self, source, storage_offset, size, stride)
    check_bounds_of(call, storage);
  }
  const FakeTensorImpl* self = as_fake(call.arg(0).toTensor());
  if (self != nullptr && self->claimed_device().is_cpu() && storage.device().is_cpu()) {
    // Only read and copied: nothing is written through the pointer.
    const at::Tensor bytes = at::from_blob(
        const_cast<void*>(storage.data()), {static_cast<int64_t>(storage.nbytes())}, at::TensorOptions(c10::kByte));
    call.arg(1) = lift(bytes, mode, /*copy=*/true).storage();
  }
  return RuleResult::kContinue;
}

}  // namespace

RuleList view_rules() {
  return {
      {"as_strided. as_strided_.", &as_strided},
      {"view. _unsafe_view.", &check_view},
      {"set_.source_Storage set_.source_Storage_storage_offset", &set_storage},
      {"set_.source_Tensor set_.source_Tensor_storage_offset", &set_tensor},
      {"set.source_Storage set.source_Storage_out set.source_Storage_storage_offset "
       "set.source_Storage_storage_offset_out",
       &refuse_copies_of_storages},
      {"_new_zeros_with_same_feature_meta", &check_batch_dims},
      {"_lazy_clone.", &lazy_clone},
      {"_pin_memory.", &pin_memory},
  };
}

}  // namespace torchfake
