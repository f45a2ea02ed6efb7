// The public functions, implemented with the engine.
#include <torchfake/torchfake.h>

#include <ATen/EmptyTensor.h>
#include <ATen/FunctionalTensorWrapper.h>
#include <ATen/functorch/BatchedTensorImpl.h>

#include <torchfake/core/fake_tensor_impl.h>
#include <torchfake/core/layout_fake.h>
#include <torchfake/core/to_fake.h>
#include <torchfake/values/known_values.h>

#include <mutex>

namespace torchfake {

namespace {

// The tensor inside the wrappers of PyTorch's transforms. The wrapper of torch.func.grad cannot be unwrapped here (its
// header needs a JSON library that PyTorch does not ship); the Python API does that.
at::Tensor unwrap(at::Tensor tensor) {
  while (tensor.defined()) {
    if (auto* batched = at::functorch::maybeGetBatchedImpl(tensor)) {
      tensor = batched->value();
    } else if (at::functionalization::impl::isFunctionalTensor(tensor)) {
      tensor = at::functionalization::impl::from_functional_tensor(tensor);
    } else {
      break;
    }
  }
  return tensor;
}

const FakeTensorImpl& require_fake(const at::Tensor& tensor, const char* function) {
  const at::Tensor inner = unwrap(tensor);
  const FakeTensorImpl* fake = inner.defined() ? as_fake(inner) : nullptr;
  TORCH_CHECK_VALUE(fake != nullptr, function, ": expected a fake tensor, got a real one; see is_fake().");
  return *fake;
}

// The mode of fakes created outside any mode, shared by all of them and destroyed with the last.
ModePtr mode_outside() {
  static std::mutex mutex;
  static auto* shared = new c10::weak_intrusive_ptr<ModeState>(ModePtr());
  const std::lock_guard lock(mutex);
  ModePtr mode = shared->lock();
  if (!mode) {
    mode = c10::make_intrusive<ModeState>(FakeModeOptions{});
    *shared = c10::weak_intrusive_ptr<ModeState>(mode);
  }
  return mode;
}

}  // namespace

bool is_fake(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    return false;
  }
  return is_any_fake(tensor) || is_any_fake(unwrap(tensor));
}

at::Tensor meta_like(const at::Tensor& fake) {
  const FakeTensorImpl& impl = require_fake(fake, "meta_like");
  NoFakeMode no_mode;
  return at::detail::empty_strided_meta(impl.sizes(), impl.strides(), c10::typeMetaToScalarType(impl.dtype()));
}

at::Tensor to_fake(const at::Tensor& tensor, std::optional<c10::Device> device) {
  const ModePtr mode = current_mode();
  at::Tensor fake = at_the_boundary([&] { return to_fake(tensor, mode ? mode : mode_outside(), device); });
  if (tensor.defined() && tensor.requires_grad() && !fake.requires_grad()) {
    fake.set_requires_grad(true);
    if (tensor.is_leaf() && tensor.grad_dtype() != fake.grad_dtype()) {
      fake.set_grad_dtype(tensor.grad_dtype());
    }
  }
  return fake;
}

at::Tensor constant(const std::function<at::Tensor()>& make) {
  const ModePtr mode = current_mode();
  if (!mode) {
    return make();
  }
  at::Tensor real;
  {
    NoFakeMode no_mode;
    real = make();
  }
  at::Tensor fake = at_the_boundary([&] { return lift(real.detach(), mode, /*copy=*/true); });
  return fake.set_requires_grad(real.requires_grad());
}

c10::Device fake_device(const at::Tensor& fake) {
  const at::Tensor inner = unwrap(fake);
  if (const LayoutFake* sparse = inner.defined() ? as_layout_fake(inner) : nullptr) {
    return sparse->claimed_device();
  }
  return require_fake(fake, "fake_device").claimed_device();
}

}  // namespace torchfake
