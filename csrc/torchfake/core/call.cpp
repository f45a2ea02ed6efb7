// An operator call as it passes through the steps of dispatch.
#include <torchfake/core/call.h>

#include <ATen/core/List.h>
#include <c10/core/UndefinedTensorImpl.h>

#include <torchfake/core/layout_fake.h>

namespace torchfake {

Call::Call(const c10::OperatorHandle& op, const OpTraits& traits, c10::DispatchKeySet keys, torch::jit::Stack* stack)
    : op(op), traits(traits), keys(keys), stack(stack) {
  rescan();
}

void Call::add(const c10::IValue& value, size_t arg, size_t element) {
  if (!value.isTensor()) {
    return;
  }
  c10::TensorImpl* impl = value.unsafeToTensorImpl();
  if (impl == c10::UndefinedTensorImpl::singleton()) {
    return;
  }
  FakeTensorImpl* fake = as_fake(impl);
  (fake != nullptr ? has_fake_ : has_non_fake_) = true;
  const ArgTraits& facts = traits.args[arg];
  tensors_.push_back(
      {impl, fake, static_cast<uint16_t>(arg), static_cast<uint32_t>(element), facts.is_written, facts.is_out});
}

void Call::rescan() {
  tensors_.clear();
  has_fake_ = false;
  has_non_fake_ = false;
  for (size_t i = 0; i < num_args(); ++i) {
    const c10::IValue& value = arg(i);
    if (traits.args[i].kind == ArgKind::kTensor) {
      add(value, i, 0);
    } else if (traits.args[i].kind == ArgKind::kTensorList && value.isList()) {
      c10::ArrayRef<c10::IValue> elements = value.toListRef();
      for (size_t j = 0; j < elements.size(); ++j) {
        add(elements[j], i, j);
      }
    }
  }
}

const ModePtr* Call::find_mode() const {
  for (const TensorArg& tensor : tensors_) {
    if (tensor.fake != nullptr) {
      return &tensor.fake->mode();
    }
  }
  if (has_non_fake_) {
    for (const TensorArg& tensor : tensors_) {
      if (const LayoutFake* fake = as_layout_fake(tensor.impl)) {
        return &fake->mode();
      }
    }
  }
  const ModePtr* current = find_current_mode();
  return current != nullptr && *current ? current : nullptr;
}

std::optional<c10::Device> Call::device_arg() const {
  if (traits.device_arg < 0 || arg(traits.device_arg).isNone()) {
    return std::nullopt;
  }
  return arg(traits.device_arg).toDevice();
}

void Call::replace(const TensorArg& which, const at::Tensor& tensor) {
  c10::IValue& value = arg(which.arg);
  if (traits.args[which.arg].kind == ArgKind::kTensor) {
    value = tensor;
    return;
  }
  c10::impl::GenericList copy = value.toList().copy();
  copy.set(which.element, tensor);
  value = copy;
}

std::string Call::describe(const TensorArg& which) const {
  const std::string name = "argument '" + op.schema().arguments()[which.arg].name() + "'";
  return traits.args[which.arg].kind == ArgKind::kTensorList
      ? "element " + std::to_string(which.element) + " of " + name
      : name;
}

c10::ArrayRef<c10::IValue> outputs_of(const Call& call) {
  return c10::ArrayRef<c10::IValue>(*call.stack).slice(call.stack->size() - call.traits.num_returns);
}

}  // namespace torchfake
