// Admission: decides how a call is handled, and what happens to real tensors among its arguments.
#include <torchfake/dispatch/admission.h>

#include <ATen/core/enum_tag.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <torchfake/core/errors.h>
#include <torchfake/core/layout_fake.h>
#include <torchfake/dispatch/layout_call.h>
#include <torchfake/dispatch/meta_call.h>
#include <torchfake/values/known_values.h>

#include <algorithm>
#include <atomic>
#include <typeinfo>

namespace torchfake {

namespace {

std::atomic<Converter> g_converter{nullptr};

RealTensors rule_for_real_tensors(const ModePtr& mode) {
  return real_tensors_override().value_or(mode->options.real_tensors);
}

[[noreturn]] void refuse(const Call& call, const TensorArg& tensor, const at::Tensor& real, const ModePtr& mode) {
  const char* way_out = mode->options.real_tensors == RealTensors::kAmongThemselves
      ? " and others are fake; convert it with torchfake.to_fake, or create it inside the mode."
      : ", which from_tensor of the mode converts. Please convert all Tensors to FakeTensors first or instantiate "
        "FakeTensorMode with 'allow_non_fake_inputs'.";
  raise(
      ErrorKind::kRealTensor,
      call.op_name(),
      c10::str(call.describe(tensor), real.is_meta() ? " is a meta tensor" : " is a real tensor", way_out));
}

at::Tensor tensor_of(const TensorArg& arg) {
  return at::Tensor(c10::intrusive_ptr<c10::TensorImpl>::unsafe_reclaim_from_nonowning(arg.impl));
}

// Whether this is a nested tensor of the strided layout. Jagged ones are wrappers written in Python.
bool is_nested(const TensorArg& tensor) {
  const c10::DispatchKeySet keys = tensor.impl->key_set();
  return tensor.fake == nullptr && keys.has(c10::DispatchKey::NestedTensor) && !keys.has(c10::DispatchKey::Python);
}

bool has_nested(const Call& call) {
  return std::any_of(call.tensors().begin(), call.tensors().end(), is_nested);
}

// Called before the sizes of such a tensor are read, which is an internal error in PyTorch.
void refuse_nested(const Call& call, const ModePtr& mode) {
  for (const TensorArg& tensor : call.tensors()) {
    if (!is_nested(tensor)) {
      continue;
    }
    if (rule_for_real_tensors(mode) == RealTensors::kRefused) {
      refuse(call, tensor, tensor_of(tensor), mode);
    }
    raise(
        ErrorKind::kUnsupportedFakeTensor,
        call.op_name(),
        c10::str(
            call.describe(tensor),
            " is a nested tensor, and nested tensors cannot be fake; pad it with to_padded_tensor."));
  }
}

// Whether a tensor may be combined with fakes as it is.
bool is_admitted(const TensorArg& tensor) {
  return tensor.fake != nullptr || tensor.impl->is_wrapped_number() || as_layout_fake(tensor.impl) != nullptr;
}

// Whether a real tensor among fakes is data entering the mode: a batch, a constant. A trainable tensor must be
// converted with the rest of its module, and a tensor that is written to would keep its old values.
bool is_data(const TensorArg& tensor, const at::Tensor& real) {
  const bool is_trained = real.requires_grad();
  return in_fake_mode() && real.is_cpu() && real.layout() == c10::kStrided && !real.is_quantized() && !is_trained &&
      real.has_storage() && typeid(*tensor.impl) == typeid(c10::TensorImpl);
}

// Real data may be combined with fakes. A Python scalar arrives as a real tensor and stays one, because Python kernels
// read it. Data is converted on the way in, with known values if it is small. Any other real tensor is a user error,
// reported before anything is changed.
void admit_data(Call& call, const ModePtr& mode) {
  if (call.traits.is_factory_like && !call.has_fake()) {
    return;
  }
  for (size_t i = 0; i < call.tensors().size(); ++i) {
    const TensorArg tensor = call.tensors()[i];
    if (is_admitted(tensor)) {
      continue;
    }
    const at::Tensor real = tensor_of(tensor);
    const bool number = real.is_cpu() && real.dim() == 0;
    const bool moved = !call.has_fake() && call.traits.converts;
    TORCH_CHECK_NOT_IMPLEMENTED(!moved || !real.is_meta(), "Cannot copy out of meta tensor; no data!");
    if (tensor.is_written ||
        !(number || moved || is_data(tensor, real) || tensor.impl->key_set().has(c10::DispatchKey::Fake))) {
      refuse(call, tensor, real, mode);
    }
    call.replace(tensor, lift(real, mode, /*copy=*/true));
  }
}

void convert_all(Call& call, const ModePtr& mode) {
  for (size_t i = 0; i < call.tensors().size(); ++i) {
    const TensorArg tensor = call.tensors()[i];
    if (is_admitted(tensor)) {
      continue;
    }
    const at::Tensor real = tensor_of(tensor);
    if (tensor.is_written && call.op.hasTag(at::Tag::inplace_view)) {
      refuse(call, tensor, real, mode);  // the change of its sizes would be lost
    }
    call.replace(tensor, g_converter.load(std::memory_order_acquire)(real, mode));
  }
}

// Whether the call has tensor arguments and all of them are Python numbers.
bool has_only_numbers(const Call& call) {
  if (call.tensors().empty() || call.traits.mutates) {
    return false;
  }
  for (const TensorArg& tensor : call.tensors()) {
    if (!tensor.impl->is_wrapped_number()) {
      return false;
    }
  }
  return true;
}

// PyTorch's own FakeTensors wrap a meta tensor, which is detached first.
bool makes_fake_of_pytorch(const Call& call) {
  return call.traits.detaches && call.tensors().front().impl->is_meta();
}

// Factories produce fakes; operators on real tensors only stay real.
bool stays_real(const Call& call, const ModePtr& mode) {
  if (is_kept_out(*mode)) {
    return true;
  }
  if (!call.traits.takes_tensors || !call.has_non_fake()) {
    return !call.traits.returns_tensors;
  }
  if (rule_for_real_tensors(mode) != RealTensors::kAmongThemselves) {
    return makes_fake_of_pytorch(call);
  }
  if (call.traits.is_factory_like) {
    return false;
  }
  // real.to("cuda") on a machine without that device can only be meant to create a fake.
  const bool moves = call.traits.converts && call.device_arg() && !call.device_arg()->is_cpu() &&
      !call.device_arg()->is_meta() && mode->options.fake_cuda;
  return !moves;
}

// The mode of a fake of any layout; null for a real tensor.
const ModePtr* mode_of(const TensorArg& tensor) {
  if (tensor.fake != nullptr) {
    return &tensor.fake->mode();
  }
  const LayoutFake* fake = as_layout_fake(tensor.impl);
  return fake == nullptr ? nullptr : &fake->mode();
}

void refuse_other_modes(const Call& call) {
  const ModePtr* current = find_current_mode();
  const ModeState* mode = current != nullptr && *current ? current->get() : nullptr;
  for (const TensorArg& tensor : call.tensors()) {
    const ModePtr* owner = mode_of(tensor);
    if (owner == nullptr) {
      continue;
    }
    const ModeState* other = owner->get();
    if (mode == nullptr) {
      mode = other;
    }
    if (other != mode && (other->options.exclusive || mode->options.exclusive)) {
      raise(
          ErrorKind::kMixedModes,
          call.op_name(),
          c10::str(
              call.describe(tensor),
              " belongs to another mode. Mixing fake modes NYI: a FakeTensorMode only takes its own fakes. Convert it "
              "with the mode's from_tensor."));
    }
  }
}

// Whether the elements of its lists are on several devices, in which case they are processed one by one, as for real
// tensors. Scalars next to the lists may be on any device.
bool lists_several_devices(const Call& call) {
  const FakeTensorImpl* first = nullptr;
  for (const TensorArg& tensor : call.tensors()) {
    if (tensor.fake == nullptr || call.traits.args[tensor.arg].kind != ArgKind::kTensorList) {
      continue;
    }
    if (first != nullptr && tensor.fake->claimed_device() != first->claimed_device()) {
      return true;
    }
    first = tensor.fake;
  }
  return false;
}

Route route_without_fakes(const Call& call, const ModePtr& mode) {
  if (call.traits.lift != Lift::kNo) {
    return Route::kLift;
  }
  if (has_only_numbers(call)) {
    return Route::kNumbers;
  }
  if (!stays_real(call, mode)) {
    return Route::kFake;
  }
  // One of the operators that it decomposes into may create a fake: without autograd's keys, real.to("cuda") arrives
  // here undecomposed.
  const bool has_parts = call.traits.is_composite && call.has_non_fake() && !is_kept_out(*mode) &&
      must_decompose(call.op) && !has_nested(call);  // nested tensors have kernels of their own
  return has_parts ? Route::kDecomposed : Route::kReal;
}

}  // namespace

Route find_route(const Call& call, const ModePtr& mode) {
  if (C10_UNLIKELY(exclusive_modes_exist())) {
    refuse_other_modes(call);
  }
  if (C10_UNLIKELY(call.has_non_fake()) && has_layout_fake(call)) {
    return is_kept_out(*mode) ? Route::kLayoutKeptOut : Route::kLayout;
  }
  if (C10_UNLIKELY(!call.has_fake())) {
    const Route route = route_without_fakes(call, mode);
    if (route != Route::kFake) {
      return route;
    }
  }
  if (C10_UNLIKELY(call.has_non_fake())) {
    refuse_nested(call, mode);
  }
  if (C10_UNLIKELY(call.traits.is_composite) && must_decompose(call.op)) {
    return Route::kDecomposed;
  }
  if (C10_UNLIKELY(call.traits.is_foreach) && lists_several_devices(call)) {
    return Route::kOneByOne;
  }
  if (C10_UNLIKELY(call.traits.makes_other_layout)) {
    return Route::kLayout;
  }
  return Route::kFake;
}

void set_converter(Converter converter) {
  g_converter.store(converter, std::memory_order_release);
}

void admit_real_tensors(Call& call, const ModePtr& mode) {
  switch (rule_for_real_tensors(mode)) {
    case RealTensors::kAmongThemselves:
      admit_data(call, mode);
      break;
    case RealTensors::kConverted:
      convert_all(call, mode);
      break;
    case RealTensors::kRefused:
      for (const TensorArg& tensor : call.tensors()) {
        if (!is_admitted(tensor)) {
          refuse(call, tensor, tensor_of(tensor), mode);
        }
      }
  }
  call.rescan();
}

}  // namespace torchfake
