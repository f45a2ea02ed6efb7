// Converts real tensors to fakes for tracers.
#include <torchfake/convert/converter.h>

#include <ATen/EmptyTensor.h>
#include <ATen/ops/_conj.h>
#include <ATen/ops/_neg_view.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/set.h>
#include <ATen/ops/view.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <torchfake/core/errors.h>
#include <torchfake/core/layout_fake.h>
#include <torchfake/core/scoped.h>
#include <torchfake/core/symbolic_bytes.h>
#include <torchfake/core/to_fake.h>
#include <torchfake/core/weak_memo.h>
#include <torchfake/dispatch/admission.h>

namespace torchfake {

namespace {

WeakMemo<c10::TensorImpl>& memo() {
  static auto* memo = new WeakMemo<c10::TensorImpl>();  // never destroyed: fakes may outlive static storage
  return *memo;
}

WeakMemo<c10::TensorImpl>::Key key_of(const at::Tensor& tensor, const ModePtr& mode) {
  return {tensor.unsafeGetTensorImpl(), mode.get(), c10::kCPU};
}

using ImplPtr = c10::intrusive_ptr<c10::TensorImpl>;

ImplPtr impl_of(const at::Tensor& tensor) {
  return ImplPtr::unsafe_reclaim_from_nonowning(tensor.unsafeGetTensorImpl());
}

c10::Device claimed_by(const at::Tensor& tensor, const ModePtr& mode) {
  if (tensor.is_meta() && !mode->options.allow_meta) {
    raise(
        ErrorKind::kUnsupportedFakeTensor,
        "from_tensor",
        "a meta tensor was given to a mode with allow_meta=False; from_meta_and_device takes the device to claim.");
  }
  return normalize_device(tensor.device());
}

// A non-leaf tensor: to autograd it is the result of a clone.
at::Tensor with_history(const at::Tensor& leaf) {
  at::Tensor copy;
  {
    c10::AutoGradMode grad(true);
    copy = leaf.set_requires_grad(true).clone();
  }
  c10::AutoGradMode no_grad(false);
  return copy.set_(leaf.storage(), leaf.storage_offset(), leaf.sizes(), leaf.strides());
}

// The entire storage of `base`, reinterpreted as another dtype.
at::Tensor memory_as(const at::Tensor& base, c10::ScalarType dtype) {
  const int64_t numel = static_cast<int64_t>(bytes_now(*base.storage().unsafeGetStorageImpl()) / base.element_size());
  at::Tensor flat = at::as_strided(base, {numel}, {1}, 0);
  if (base.is_complex() && dtype == c10::toRealValueType(base.scalar_type())) {
    return at::view_as_real(flat);
  }
  if (c10::isComplexType(dtype) && base.scalar_type() == c10::toRealValueType(dtype)) {
    return at::view_as_complex(flat.view({-1, 2}));
  }
  return flat.view(dtype);
}

// A view remains a view of the converted base.
at::Tensor as_view(const at::Tensor& tensor, const ModePtr& mode) {
  const at::Tensor base = from_tensor(at::Tensor(tensor._base()), mode);
  c10::AutoGradMode grad(tensor.requires_grad() && !tensor.is_leaf());
  const at::Tensor memory = base.dtype() == tensor.dtype() ? base : memory_as(base, tensor.scalar_type());
  at::Tensor view = at::as_strided(memory, tensor.sizes(), tensor.strides(), tensor.storage_offset());
  if (tensor.is_conj() != base.is_conj()) {
    view = at::_conj(view);
  }
  if (tensor.is_neg() != base.is_neg()) {
    view = at::_neg_view(view);
  }
  return tensor.requires_grad() && tensor.is_leaf() ? view.set_requires_grad(true) : view;
}

// Copies the dtype of gradients, if the program set one other than the tensor's own.
void keep_grad_dtype(const at::Tensor& tensor, const at::Tensor& fake) {
  if (tensor.is_leaf() && tensor.requires_grad() && fake.is_leaf() && tensor.grad_dtype() != fake.grad_dtype()) {
    fake.set_grad_dtype(tensor.grad_dtype());
  }
}

// Drops the stored elements, as PyTorch's converter does: their number would be a size that does not follow from the
// program's sizes. torchfake::to_fake keeps them.
at::Tensor without_elements(const at::Tensor& sparse, const ModePtr& mode) {
  const c10::Device device = claimed_by(sparse, mode);
  const std::vector<at::Tensor> members = members_of(sparse);
  const auto fake_without = [&](const at::Tensor& member, int64_t dim) {
    c10::SmallVector<int64_t, 6> sizes(member.sizes());
    if (dim >= 0) {
      sizes[dim] = 0;
    }
    return make_fake_of(at::detail::empty_meta(sizes, member.scalar_type()), mode, device);
  };
  std::vector<at::Tensor> fakes;
  if (sparse.layout() == c10::kSparse) {
    fakes = {fake_without(members[0], 1), fake_without(members[1], 0)};
  } else {
    const int64_t batch = members[0].dim() - 1;
    fakes = {fake_without(members[0], -1), fake_without(members[1], batch), fake_without(members[2], batch)};
  }
  at::Tensor fake = make_layout_fake(sparse, fakes, device, mode);
  if (!sparse.requires_grad()) {
    return fake;
  }
  fake.set_requires_grad(true);
  if (sparse.is_leaf()) {
    return fake;
  }
  c10::AutoGradMode grad(true);
  return fake.clone();
}

at::Tensor convert(const at::Tensor& tensor, const ModePtr& mode) {
  c10::InferenceMode inference(tensor.is_inference());
  if (is_sparse_layout(tensor.layout())) {
    return without_elements(tensor, mode);
  }
  // A fake whose device was changed may be on another device than its base. Quantized tensors take no part in autograd.
  if (!tensor.is_inference() && tensor.is_view() && !tensor.is_quantized() &&
      tensor.device() == tensor._base().device()) {
    return as_view(tensor, mode);
  }
  at::Tensor fake = make_fake_of(tensor, mode, claimed_by(tensor, mode));
  if (!tensor.requires_grad()) {
    return fake;
  }
  return tensor.is_leaf() ? fake.set_requires_grad(true) : with_history(fake);
}

}  // namespace

namespace {

// A conversion in progress on this thread. Other threads only see a complete fake, including its gradient. The gradient
// of a gradient may be the tensor itself, which is then found here.
struct InProgress {
  const at::Tensor& tensor;
  const ModePtr& mode;
  const at::Tensor& fake;
  InProgress* const outer;
};

thread_local InProgress* t_in_progress = nullptr;

const at::Tensor* find_in_progress(const at::Tensor& tensor, const ModePtr& mode) {
  for (const InProgress* each = t_in_progress; each != nullptr; each = each->outer) {
    if (each->tensor.is_same(tensor) && each->mode == mode) {
      return &each->fake;
    }
  }
  return nullptr;
}

void require(const at::Tensor& tensor, const ModePtr& mode, const char* what) {
  TORCH_CHECK_VALUE(tensor.defined() && mode, what, ": expected a tensor and a mode, got none");
}

}  // namespace

at::Tensor find_converted(const at::Tensor& tensor, const ModePtr& mode) {
  require(tensor, mode, "find_converted");
  ImplPtr found = memo().find(key_of(tensor, mode));
  return found ? at::Tensor(std::move(found)) : at::Tensor();
}

void remember_converted(const at::Tensor& tensor, const at::Tensor& fake) {
  TORCH_CHECK_VALUE(
      tensor.defined() && fake.defined() && is_any_fake(fake),
      "remember_converted: what stands for a tensor has to be a fake");
  memo().remember(key_of(tensor, mode_of_any(fake)), impl_of(tensor), impl_of(fake));
}

namespace {

// Returns the fake of `tensor`: `fake`, unless another thread registered one first.
at::Tensor remember_first(const at::Tensor& tensor, const at::Tensor& fake) {
  return at::Tensor(memo().remember_first(key_of(tensor, mode_of_any(fake)), impl_of(tensor), impl_of(fake)));
}

}  // namespace

at::Tensor from_tensor(const at::Tensor& tensor, const ModePtr& mode) {
  if (!tensor.defined()) {
    return tensor;
  }
  require(tensor, mode, "from_tensor");
  if (mode_of_any(tensor) == mode) {
    return tensor;
  }
  if (at::Tensor found = find_converted(tensor, mode); found.defined()) {
    return found;
  }
  if (const at::Tensor* begun = find_in_progress(tensor, mode)) {
    return *begun;
  }
  // Operators on the fakes below run in this mode, whichever mode the thread is in.
  FakeMode entered(mode);
  at::Tensor fake = convert(tensor, mode);
  keep_grad_dtype(tensor, fake);
  if (tensor.is_leaf() && tensor.grad().defined()) {
    InProgress this_one{tensor, mode, fake, t_in_progress};
    Scoped in_progress(t_in_progress, &this_one);
    fake.mutable_grad() = from_tensor(tensor.grad(), mode);
  }
  return remember_first(tensor, fake);
}

at::Tensor from_meta_and_device(const at::Tensor& meta, c10::Device device, const ModePtr& mode) {
  TORCH_CHECK_VALUE(
      meta.defined() && meta.is_meta(), "from_meta_and_device: expected a meta tensor, got one on ", meta.device());
  if (at::Tensor found = find_converted(meta, mode); found.defined()) {
    return found;
  }
  mode->note_use();  // before the guard of the device is queried
  at::Tensor fake = make_fake_of(meta, mode, normalize_device(device));
  if (meta.requires_grad()) {
    fake.set_requires_grad(true);
  }
  return remember_first(meta, fake);
}

namespace {

[[maybe_unused]] const bool g_is_set = (set_converter(&from_tensor), true);

}  // namespace

}  // namespace torchfake
