// C++ meta kernels by operator name: those of rules/ and those that PyTorch ships, in a table generated at build time.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/boxing/impl/boxing.h>

#include <map>
#include <string>
#include <vector>

namespace torchfake {

// A boxed C++ meta kernel of an operator.
struct NativeKernel {
  std::string name;  // "aten::add.Tensor"
  c10::KernelFunction kernel;
};

template <typename Signature, Signature* kFunction>
NativeKernel native_kernel(const char* name) {
  return {name, c10::KernelFunction::makeFromUnboxedFunction(c10::CompileTimeFunctionPointer<Signature, kFunction>())};
}

// Visits every kernel of the generated table, which holds PyTorch's own.
void for_each_native_kernel(void (*visit)(const NativeKernel&));

// Returns the kernel for an operator, or null. `name` is qualified: "aten::add.Tensor", "aten::mm".
const c10::KernelFunction* find_native_kernel(const std::string& name);

// The operators with such a kernel; the value is true for those of rules/.
std::map<std::string, bool> list_native_kernels();

}  // namespace torchfake
