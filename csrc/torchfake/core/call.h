// An operator call as it passes through the steps of dispatch: its arguments on the stack and the tensors among them.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <torchfake/core/fake_tensor_impl.h>
#include <torchfake/core/op_traits.h>

namespace torchfake {

// Whether an index of this dtype is a mask, whose values determine the shape of the result.
inline bool is_mask(c10::ScalarType dtype) {
  return dtype == c10::kBool || dtype == c10::kByte;
}

struct TensorArg {
  c10::TensorImpl* impl;
  FakeTensorImpl* fake;  // null for a real tensor
  uint16_t arg;  // index of the argument
  uint32_t element;  // index in the argument, where that is a list
  bool is_written;
  bool is_out;
};

// Holds no references: valid while the arguments stay unchanged on the stack. Call `rescan()` after changing them.
class Call {
 public:
  Call(const c10::OperatorHandle& op, const OpTraits& traits, c10::DispatchKeySet keys, torch::jit::Stack* stack);

  const c10::OperatorHandle& op;
  const OpTraits& traits;
  const c10::DispatchKeySet keys;
  torch::jit::Stack* const stack;

  size_t num_args() const {
    return traits.args.size();
  }
  c10::IValue& arg(size_t index) const {
    return *(stack->end() - static_cast<ptrdiff_t>(num_args()) + static_cast<ptrdiff_t>(index));
  }
  const c10::SmallVector<TensorArg, 8>& tensors() const {
    return tensors_;
  }
  bool has_fake() const {
    return has_fake_;
  }
  bool has_non_fake() const {
    return has_non_fake_;
  }
  // The mode that handles the call: that of the first fake, otherwise the thread's. Null if there is neither.
  const ModePtr* find_mode() const;

  // The device argument, if the call has one that is not None.
  std::optional<c10::Device> device_arg() const;

  // Replaces a tensor argument by `tensor`. A list is copied first, so the caller's list is unaffected.
  void replace(const TensorArg& which, const at::Tensor& tensor);

  // Collects the tensors among the arguments again.
  void rescan();

  // "argument 'other'", or "element 3 of argument 'tensors'".
  std::string describe(const TensorArg& which) const;

  std::string op_name() const {
    return traits.qualified_name();
  }

 private:
  void add(const c10::IValue& value, size_t arg, size_t element);

  c10::SmallVector<TensorArg, 8> tensors_;
  bool has_fake_ = false;
  bool has_non_fake_ = false;
};

// The operator's results: the last `num_returns` values on the stack after a call.
c10::ArrayRef<c10::IValue> outputs_of(const Call& call);

}  // namespace torchfake
