// The one place where torchfake's errors are thrown.
#include <torchfake/core/errors.h>

#include <c10/core/impl/TorchDispatchModeTLS.h>

#include <torchfake/core/call_context.h>

#include <atomic>

namespace torchfake {

namespace {

std::atomic<ErrorHook> g_error_hook{nullptr};

}  // namespace

FakeTensorError::FakeTensorError(ErrorKind kind, std::string op, const std::string& message)
    : c10::Error(message, /*backtrace=*/nullptr), kind_(kind), op_(std::move(op)) {}

void set_error_hook(ErrorHook hook) {
  g_error_hook.store(hook, std::memory_order_release);
}

namespace {

// Whether there is only C++ code between this boundary and the enclosing call of the engine.
bool is_inner_boundary() {
  const CallContext* around = CallContext::current();
  return around != nullptr && !around->passes_python && c10::impl::TorchDispatchModeTLS::stack_len() == 0;
}

}  // namespace

void show_to_hook(const FakeTensorError& error) {
  if (is_inner_boundary()) {
    return;
  }
  if (ErrorHook hook = g_error_hook.load(std::memory_order_acquire)) {
    hook(error);
  }
}

void raise(ErrorKind kind, const std::string& op, const std::string& detail) {
  throw_error(kind, op, op.empty() ? detail : op + ": " + detail);
}

void throw_error(ErrorKind kind, const std::string& op, const std::string& message) {
  switch (kind) {
    case ErrorKind::kDataAccess:
      throw DataAccessError(op, message);
    case ErrorKind::kDataDependentOutput:
      throw DataDependentOutputException(op, message);
    case ErrorKind::kDynamicOutputShape:
      throw DynamicOutputShapeException(op, message);
    case ErrorKind::kUnsupportedOperator:
      throw UnsupportedOperatorException(op, message);
    case ErrorKind::kUnsupportedFakeTensor:
      throw UnsupportedFakeTensorException(op, message);
    case ErrorKind::kDeviceMismatch:
      throw DeviceMismatchError(op, message);
    case ErrorKind::kRealTensor:
      throw RealTensorError(op, message);
    case ErrorKind::kMetadataMismatch:
      throw MetadataMismatchError(op, message);
    case ErrorKind::kMixedModes:
      throw MixedModesError(op, message);
    case ErrorKind::kDeviceNotFaked:
      throw DeviceNotFakedError(op, message);
    case ErrorKind::kUnsupportedMutationAliasing:
      throw UnsupportedMutationAliasingException(op, message);
  }
  TORCH_INTERNAL_ASSERT(false, "unknown error kind");
}

}  // namespace torchfake
