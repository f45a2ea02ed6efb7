// The one place where torchfake's errors are thrown.
#include <torchfake/core/errors.h>

#include <atomic>

namespace torchfake {

namespace {

std::atomic<ErrorHook> g_error_hook{nullptr};

template <ErrorKind kKind>
[[noreturn]] void throw_typed(std::string op, const std::string& message) {
  TypedError<kKind> error(std::move(op), message);
  if (ErrorHook hook = g_error_hook.load(std::memory_order_acquire)) {
    hook(error);
  }
  throw error;
}

}  // namespace

FakeTensorError::FakeTensorError(ErrorKind kind, std::string op, const std::string& message)
    : c10::Error(message, /*backtrace=*/nullptr), kind_(kind), op_(std::move(op)) {}

void set_error_hook(ErrorHook hook) {
  g_error_hook.store(hook, std::memory_order_release);
}

void raise(ErrorKind kind, std::string op, const std::string& detail) {
  const std::string message = op.empty() ? detail : op + ": " + detail;
  switch (kind) {
    case ErrorKind::kDataAccess:
      throw_typed<ErrorKind::kDataAccess>(std::move(op), message);
    case ErrorKind::kDataDependentOutput:
      throw_typed<ErrorKind::kDataDependentOutput>(std::move(op), message);
    case ErrorKind::kDynamicOutputShape:
      throw_typed<ErrorKind::kDynamicOutputShape>(std::move(op), message);
    case ErrorKind::kUnsupportedOperator:
      throw_typed<ErrorKind::kUnsupportedOperator>(std::move(op), message);
    case ErrorKind::kUnsupportedFakeTensor:
      throw_typed<ErrorKind::kUnsupportedFakeTensor>(std::move(op), message);
    case ErrorKind::kDeviceMismatch:
      throw_typed<ErrorKind::kDeviceMismatch>(std::move(op), message);
    case ErrorKind::kRealTensor:
      throw_typed<ErrorKind::kRealTensor>(std::move(op), message);
    case ErrorKind::kMetadataMismatch:
      throw_typed<ErrorKind::kMetadataMismatch>(std::move(op), message);
    case ErrorKind::kDeviceNotFaked:
      throw_typed<ErrorKind::kDeviceNotFaked>(std::move(op), message);
  }
  TORCH_INTERNAL_ASSERT(false, "unknown error kind");
}

}  // namespace torchfake
