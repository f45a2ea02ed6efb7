// What computes on the CPU the values that a GPU computes by kernels of its own.
#pragma once

#include <torchfake/dispatch/native_table.h>

namespace torchfake {

// Stands for a kernel that the CPU does not have, or has in a form that takes something else. Where one of its outputs is undefined, the values are not known.
struct CpuEquivalent {
  NativeKernel kernel;
  std::vector<size_t> unread;  // arguments whose values it has no use for
};

// The equivalent of an operator, or null. `name` is qualified: "aten::cudnn_batch_norm".
const CpuEquivalent* find_cpu_equivalent(const std::string& name);

}  // namespace torchfake
