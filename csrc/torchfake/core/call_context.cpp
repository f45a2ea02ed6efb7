// What an operator call accumulates while its kernel runs.
#include <torchfake/core/call_context.h>

namespace torchfake {

namespace {

// In the library's static TLS block: it is read by every device() of a fake.
__attribute__((tls_model("initial-exec"))) thread_local CallContext* t_current = nullptr;

}  // namespace

CallContext::CallContext() noexcept : parent_(t_current) {
  t_current = this;
}

CallContext::~CallContext() {
  t_current = parent_;
  if (parent_ != nullptr) {
    parent_->is_unkeyed |= is_unkeyed;
    parent_->settings |= settings;
  }
}

CallContext* CallContext::current() noexcept {
  return t_current;
}

InKernel::InKernel() noexcept {
  ++t_current->kernel_depth;
}

InKernel::~InKernel() {
  --t_current->kernel_depth;
}

bool InKernel::active() noexcept {
  return t_current != nullptr && t_current->kernel_depth > 0;
}

}  // namespace torchfake
