// Constant propagation: products in half precision, computed in single precision.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <torchfake/core/call.h>

namespace torchfake {

// Whether the call is a matrix product, convolution, attention or recurrent layer with half-precision tensors.
//
// The CPU's libraries choose instructions for these by what the processor announces, and a process on a virtual machine
// that announces instructions which it lacks ends there. Single precision needs none of them, and it is what these
// kernels accumulate in.
bool is_half_precision_product(const Call& call);

// Replaces the real arguments on the stack by what the operator returns for them, computed in single precision and
// rounded to the dtypes that the call's outputs have. Arguments that the operator writes to are written.
// Throws what the operator throws.
void call_in_single_precision(const Call& call, torch::jit::Stack& real);

}  // namespace torchfake
