// Failures inside kernels of another language, and the errors raised in their place.
#include <torchfake/core/kernel_failures.h>

#include <torchfake/core/errors.h>

#include <atomic>

namespace torchfake {

namespace {

std::atomic<KernelFailureReader> g_kernel_failure_reader{nullptr};

}  // namespace

void set_kernel_failure_reader(KernelFailureReader reader) {
  g_kernel_failure_reader.store(reader, std::memory_order_release);
}

namespace {

std::optional<KernelFailure> read(const std::exception& error) {
  const KernelFailureReader reader = g_kernel_failure_reader.load(std::memory_order_acquire);
  return reader == nullptr ? std::nullopt : reader(error);
}

}  // namespace

bool is_kernel_failure(const std::exception& error) {
  return read(error).has_value();
}

void refuse_kernel_failure(const std::string& op, const std::exception& error) {
  const std::optional<KernelFailure> failure = read(error);
  if (!failure) {
    return;
  }
  TORCH_CHECK(!failure->is_assertion, op, ": its kernel does not accept these arguments: ", failure->text);
  raise(ErrorKind::kUnsupportedOperator, op, "its kernel does not work with these arguments: " + failure->text);
}

}  // namespace torchfake
