// Refusals: calls that the real operator refuses, or that fake tensors do not support.
#include <torchfake/dispatch/refusals.h>

#include <torchfake/core/errors.h>
#include <torchfake/dispatch/meta_call.h>

namespace torchfake {

namespace {

void check_layout(const Call& call) {
  bool is_other = call.traits.makes_other_layout;
  for (size_t i = 0; i < call.num_args(); ++i) {
    const c10::IValue& value = call.arg(i);
    is_other |= call.traits.args[i].kind == ArgKind::kLayout && value.isInt() && value.toLayout() != c10::kStrided;
  }
  if (is_other) {
    refuse_layout(call);
  }
}

}  // namespace

void refuse_layout(const Call& call) {
  raise(
      ErrorKind::kUnsupportedFakeTensor,
      call.op_name(),
      "nested and MKL-DNN tensors cannot be fake; strided, sparse and quantized ones can.");
}

void check_kernels(const Call& call, c10::Device device) {
  check_layout(call);
  const bool lacks = (call.traits.lacks_cpu && device.is_cpu()) || (call.traits.lacks_cuda && device.is_cuda());
  TORCH_CHECK_NOT_IMPLEMENTED(
      !lacks,
      "Could not run '",
      call.op_name(),
      "' with arguments from the '",
      c10::DeviceTypeName(device.type()),
      "' backend: ",
      kOtherDevicesOnly);
  if (call.traits.refused_dtypes != nullptr) {
    call.traits.refused_dtypes->check(call, device);
  }
}

void check_refusals(const Call& call, c10::Device device) {
  if (call.traits.autocast_check != nullptr) {
    call.traits.autocast_check(call, device);
  }
  check_kernels(call, device);
}

// If all backends run the failing kernel, the real operator refuses these arguments too; if it is a meta kernel, only
// that kernel is known to refuse them.
void refuse_internal_assertion(const c10::OperatorHandle& op, const c10::Error& error) {
  constexpr std::string_view kMark = " INTERNAL ASSERT FAILED at ";
  const std::string message = error.what_without_backtrace();
  const size_t mark = message.find(kMark);
  if (mark == std::string::npos) {
    return;
  }
  const std::string name = c10::toString(op.operator_name());
  const std::string detail = "its kernel does not accept these arguments: the check `" + message.substr(0, mark) +
      "` failed in " + message.substr(mark + kMark.size());
  TORCH_CHECK(!find_composite_key(op), name, ": ", detail);
  raise(ErrorKind::kUnsupportedOperator, name, detail);
}

}  // namespace torchfake
