// Constant propagation: half-precision products, computed in single precision.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <torchfake/core/call.h>

namespace torchfake {

// Whether the call is a matrix product, convolution, attention or recurrent layer with half-precision tensors.
//
// For these, the CPU libraries choose instructions by what the processor reports. On a virtual machine that reports
// instructions it does not support, the process crashes. Single precision needs none of them, and these kernels
// accumulate in single precision anyway.
bool is_half_precision_product(const Call& call);

// Replaces the real arguments on the stack by the operator's results, computed in single precision and rounded to the
// dtypes of the call's outputs. Also writes the arguments that the operator mutates. Throws whatever the operator
// throws.
void call_in_single_precision(const Call& call, torch::jit::Stack& real);

}  // namespace torchfake
