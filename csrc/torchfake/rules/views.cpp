// Rules about storages: views with free geometry, which a real kernel keeps inside the storage, and pinned memory.
#include <ATen/native/Resize.h>
#include <ATen/ops/from_blob.h>

#include <torchfake/dispatch/known_values.h>
#include <torchfake/rules/rules.h>

namespace torchfake {

namespace {

void check_bounds(const at::Tensor& tensor, c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t offset) {
  if (sizes.size() == strides.size()) {  // else the kernel has an error of its own
    at::native::checkInBoundsForStorage(sizes, strides, offset, tensor.dtype(), tensor.storage());
  }
}

// as_strided(self, size, stride, storage_offset=None), and in place
RuleResult as_strided(Call& call, const ModePtr& /*mode*/) {
  const at::Tensor self = call.arg(0).toTensor();
  const int64_t offset = call.arg(3).isNone() ? self.storage_offset() : call.arg(3).toInt();
  check_bounds(self, call.arg(1).toIntVector(), call.arg(2).toIntVector(), offset);
  return RuleResult::kContinue;
}

// _pin_memory(self, device=None): host memory of another kind, so a copy that keeps its strides.
RuleResult pin_memory(Call& call, const ModePtr& /*mode*/) {
  const at::Tensor self = call.arg(0).toTensor();
  TORCH_CHECK(self.is_cpu(), "cannot pin a tensor on ", self.device(), "; only dense CPU tensors can be pinned");
  at::Tensor copy = self.clone(at::MemoryFormat::Preserve);
  return answer_with(call, std::move(copy));
}

// set_(self, source, ...) with the storage of real tensors: `torch.ByteTensor(storage)` makes a fake of it.
RuleResult set_storage(Call& call, const ModePtr& mode) {
  const c10::Storage storage = call.arg(1).toStorage();
  const FakeTensorImpl* self = as_fake(call.arg(0).toTensor());
  if (self != nullptr && self->claimed_device().is_cpu() && storage.device().is_cpu()) {
    // Read, and copied: the pointer is not written to.
    const at::Tensor bytes = at::from_blob(
        const_cast<void*>(storage.data()), {static_cast<int64_t>(storage.nbytes())}, at::TensorOptions(c10::kByte));
    call.arg(1) = lift(bytes, mode, /*copy=*/true).storage();
  }
  return RuleResult::kContinue;
}

}  // namespace

Rule find_view_rule(std::string_view name, std::string_view overload) {
  if ((name == "aten::as_strided" || name == "aten::as_strided_") && overload.empty()) {
    return &as_strided;
  }
  if (name == "aten::set_" && overload.substr(0, 14) == "source_Storage") {
    return &set_storage;
  }
  if (name == "aten::_pin_memory" && overload.empty()) {
    return &pin_memory;
  }
  return nullptr;
}

}  // namespace torchfake
