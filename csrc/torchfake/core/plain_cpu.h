// Real CPU tensors used alongside fakes: for known values, and for kernels that only exist on the CPU.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace torchfake {

// While alive, operators on this thread are plain CPU operators: no engine, autograd, autocast or Python modes.
class PlainCpu {
 public:
  PlainCpu();

 private:
  c10::impl::ForceDispatchKeyGuard guard_;
};

// A real CPU tensor over `bytes` with the geometry, dtype and bits of `like`.
at::Tensor cpu_tensor_over(c10::intrusive_ptr<c10::StorageImpl> bytes, const c10::TensorImpl& like);

// A real CPU storage of `nbytes` zeros.
c10::intrusive_ptr<c10::StorageImpl> zero_bytes(size_t nbytes);

}  // namespace torchfake
