// Outputs: converts the results of a kernel to fakes.
#include <torchfake/dispatch/wrap_outputs.h>

#include <ATen/EmptyTensor.h>

#include <torchfake/core/errors.h>

namespace torchfake {

Inputs::Inputs(const Call& call) {
  for (const TensorArg& tensor : call.tensors()) {
    tensors_.push_back(c10::intrusive_ptr<c10::TensorImpl>::unsafe_reclaim_from_nonowning(tensor.impl));
  }
}

const FakeTensorImpl* Inputs::owner_of(const c10::StorageImpl* storage) const {
  for (const auto& tensor : tensors_) {
    if (tensor->has_storage() && tensor->unsafe_storage().unsafeGetStorageImpl() == storage) {
      return as_fake(tensor.get());
    }
  }
  return nullptr;
}

namespace {

// Keys that describe the values rather than the backend.
const c10::DispatchKeySet kValueKeys = c10::DispatchKeySet(c10::DispatchKey::Conjugate) |
    c10::DispatchKeySet(c10::DispatchKey::Negative) | c10::DispatchKeySet(c10::DispatchKey::ZeroTensor);

at::Tensor wrap(
    const Call& call,
    const at::Tensor& output,
    const Inputs& inputs,
    c10::Device device,
    const ModePtr& mode) {
  if (!output.defined() || as_fake(output) != nullptr) {
    return output;
  }
  if (output.layout() != c10::kStrided || output.is_quantized() || c10::isQIntType(output.scalar_type())) {
    raise(
        ErrorKind::kUnsupportedFakeTensor,
        call.op_name(),
        c10::str(
            "the result is ",
            output.layout(),
            " ",
            output.scalar_type(),
            "; a kernel on metadata must return strided tensors."));
  }
  const c10::TensorImpl* impl = output.unsafeGetTensorImpl();
  const c10::Storage& storage = impl->unsafe_storage();
  const GeometryRef geometry{output.sizes(), output.strides(), output.storage_offset()};
  if (const FakeTensorImpl* base = inputs.owner_of(storage.unsafeGetStorageImpl())) {
    c10::DispatchKeySet keys = (base->key_set() - kValueKeys) | (impl->key_set() & kValueKeys);
    return make_fake(storage, keys, output.dtype(), geometry, base->claimed_device(), base->mode());
  }
  if (device.is_meta() && !mode->options.exclusive) {
    return output;
  }
  adopt_storage(storage, device, mode->options.storage_observer);
  // Only one operator creates tensors of zeros without storage; others may copy its key.
  c10::DispatchKeySet keys = key_set_for(device, output.scalar_type()) | (impl->key_set() & kValueKeys);
  if (!call.traits.makes_zero_tensor) {
    keys = keys.remove(c10::DispatchKey::ZeroTensor);
  }
  at::Tensor fresh = make_fake(storage, keys, output.dtype(), geometry, device, mode);
  // A kernel that fills a tensor it created has incremented the version: at::zeros called from C++, for example.
  const c10::VariableVersion& version = impl->version_counter();
  if (version.enabled() && version.current_version() > 0 && !fresh.is_inference()) {
    fresh.unsafeGetTensorImpl()->set_version_counter(c10::VariableVersion(version.current_version()));
  }
  if (impl->is_wrapped_number()) {
    fresh.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return fresh;
}

// Python kernels may return the same tensor twice where the real operator returns two.
at::Tensor with_own_storage(const at::Tensor& output, c10::SmallVectorImpl<const c10::StorageImpl*>& seen) {
  if (!output.defined() || as_fake(output) != nullptr || !output.has_storage()) {
    return output;
  }
  const c10::StorageImpl* storage = output.storage().unsafeGetStorageImpl();
  if (std::find(seen.begin(), seen.end(), storage) == seen.end()) {
    seen.push_back(storage);
    return output;
  }
  return at::detail::empty_strided_meta(output.sizes(), output.strides(), output.scalar_type());
}

// Gives every fresh output of an operator that returns no views a storage of its own.
void split_shared_outputs(const Call& call, const Inputs& inputs) {
  c10::SmallVector<const c10::StorageImpl*, 4> seen;
  const size_t first = call.stack->size() - call.traits.num_returns;
  for (size_t i = first; i < call.stack->size(); ++i) {
    c10::IValue& value = (*call.stack)[i];
    if (value.isTensor()) {
      const at::Tensor output = value.toTensor();
      if (output.defined() && output.has_storage() &&
          inputs.owner_of(output.storage().unsafeGetStorageImpl()) == nullptr) {
        value = with_own_storage(output, seen);
      }
    }
  }
}

// Memory-efficient attention passes its random state, the third and fourth output, to its backward pass on the CPU.
c10::Device device_of_output(const Call& call, size_t output, c10::Device device) {
  const bool is_state = call.traits.seeds_on_cpu && device.is_cuda() && output >= 2;
  return is_state ? c10::Device(c10::kCPU) : device;
}

}  // namespace

void wrap_outputs(const Call& call, const Inputs& inputs, c10::Device device, const ModePtr& mode) {
  const bool may_be_pythons = call.traits.is_builtin && call.traits.kernel == nullptr;
  if (may_be_pythons && !call.traits.is_view && call.traits.num_returns > 1) {
    split_shared_outputs(call, inputs);
  }
  const size_t first = call.stack->size() - call.traits.num_returns;
  for (size_t i = first; i < call.stack->size(); ++i) {
    c10::IValue& value = (*call.stack)[i];
    if (value.isTensor()) {
      value = wrap(call, value.toTensor(), inputs, device_of_output(call, i - first, device), mode);
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> wrapped;
      for (const at::Tensor& tensor : value.toTensorVector()) {
        wrapped.push_back(wrap(call, tensor, inputs, device, mode));
      }
      value = std::move(wrapped);
    }
  }
}

void lay_out_as(const at::Tensor& out, const at::Tensor& real) {
  if (out.sizes() != real.sizes() || out.strides() != real.strides()) {
    const size_t nbytes = at::detail::computeStorageNbytes(real.sizes(), real.strides(), real.itemsize());
    out.resize_({static_cast<int64_t>(nbytes / real.itemsize())});  // strides may leave gaps
    out.as_strided_(real.sizes(), real.strides());
  }
}

}  // namespace torchfake
