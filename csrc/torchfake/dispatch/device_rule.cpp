// Device: picks the device each fresh output claims.
#include <torchfake/dispatch/device_rule.h>

#include <torchfake/core/errors.h>

namespace torchfake {

namespace {

bool is_cpu_scalar(const FakeTensorImpl& fake) {
  return fake.claimed_device().is_cpu() && fake.dim() == 0;
}

[[noreturn]] void refuse(const Call& call, const TensorArg& first, const TensorArg& second) {
  raise(
      ErrorKind::kDeviceMismatch,
      call.op_name(),
      c10::str(
          "Expected all tensors to be on the same device, but found two different devices ",
          first.fake->claimed_device(),
          ", ",
          second.fake->claimed_device(),
          ": ",
          call.describe(first),
          " claims ",
          first.fake->claimed_device(),
          " and ",
          call.describe(second),
          " claims ",
          second.fake->claimed_device(),
          "; move one of them with .to()."));
}

// An index that may be on a different device than the indexed tensor.
bool is_free_index(const Call& call, const TensorArg& tensor) {
  const DevicePolicy policy = call.traits.devices;
  return call.traits.args[tensor.arg].kind == ArgKind::kTensorList &&
      (policy == DevicePolicy::kIndicesFromAnywhere ||
       (policy == DevicePolicy::kIndicesFromCpu && tensor.fake->claimed_device().is_cpu()));
}

// The outputs claim the device of `first`.
bool joins_as_meta(const Call& call, const TensorArg& first, const TensorArg& second) {
  return call.traits.takes_meta && first.fake->claimed_device().is_meta() != second.fake->claimed_device().is_meta();
}

const TensorArg* common_device_arg(const Call& call, std::optional<c10::DeviceType> prefer) {
  const bool scalars_join = call.traits.devices != DevicePolicy::kCommonNoScalars;
  const TensorArg* common = nullptr;
  for (const TensorArg& tensor : call.tensors()) {
    if (tensor.fake == nullptr) {
      continue;
    }
    if (common == nullptr) {
      common = &tensor;
      continue;
    }
    if (tensor.fake->claimed_device() == common->fake->claimed_device()) {
      // Even if the devices agree, prefer a tensor that is not a scalar: a scalar could be overruled later.
      if (is_cpu_scalar(*common->fake) && !is_cpu_scalar(*tensor.fake)) {
        common = &tensor;
      }
      continue;
    }
    if (scalars_join && is_cpu_scalar(*tensor.fake) && !tensor.is_written) {
      continue;
    }
    if (scalars_join && is_cpu_scalar(*common->fake) && !common->is_written) {
      common = &tensor;
      continue;
    }
    if (is_free_index(call, tensor) || joins_as_meta(call, *common, tensor)) {
      continue;
    }
    if (prefer && common->fake->claimed_device().type() != tensor.fake->claimed_device().type()) {
      if (common->fake->claimed_device().type() == *prefer) {
        continue;
      }
      if (tensor.fake->claimed_device().type() == *prefer) {
        common = &tensor;
        continue;
      }
    }
    refuse(call, *common, tensor);
  }
  return common;
}

c10::Device claimed_by_outputs(const Call& call, const ModeState& mode) {
  if (std::optional<c10::Device> asked = call.device_arg()) {
    const c10::Device device = normalize_device(*asked);
    if (!mode.options.fake_cuda && !device.is_cpu() && !device.is_meta()) {
      raise(
          ErrorKind::kDeviceNotFaked,
          call.op_name(),
          c10::str("device ", device, " was requested in a mode with fake_cuda=False; enable fake_cuda to claim it."));
    }
    if (!mode.options.allow_meta && device.is_meta()) {
      raise(
          ErrorKind::kUnsupportedFakeTensor,
          call.op_name(),
          "the meta device was requested in a mode with allow_meta=False.");
    }
    return device;
  }
  if (!call.has_fake()) {
    // zeros_like(real), in the mode: the device of the real tensor.
    return call.tensors().empty() ? c10::Device(c10::kCPU) : call.tensors().front().impl->device();
  }
  if (call.traits.devices == DevicePolicy::kFirst) {
    return call.tensors().front().fake != nullptr ? call.tensors().front().fake->claimed_device()
                                                  : c10::Device(c10::kCPU);
  }
  return common_device_arg(call, mode.options.prefer_device_type)->fake->claimed_device();
}

void check_generator(const Call& call, c10::Device device) {
  for (size_t i = 0; i < call.num_args(); ++i) {
    const c10::IValue& arg = call.arg(i);
    if (!arg.isGenerator() || !arg.toGenerator().defined() || arg.toGenerator().device().type() == device.type()) {
      continue;
    }
    raise(
        ErrorKind::kDeviceMismatch,
        call.op_name(),
        c10::str(
            "Expected a '",
            device.type(),
            "' device type for generator but found '",
            arg.toGenerator().device().type(),
            "'; make one with torch.Generator(device=\"",
            device.type(),
            "\")."));
  }
}

}  // namespace

c10::Device device_rule(const Call& call, const ModeState& mode) {
  const c10::Device device = claimed_by_outputs(call, mode);
  if (!device.is_meta()) {
    check_generator(call, device);
  }
  return device;
}

}  // namespace torchfake
