// What computes on the CPU the values that a GPU computes by kernels of its own.
#pragma once

#include <torchfake/core/operator_facts.h>

#include <string>

namespace torchfake {

// The equivalent of an operator, or null. `name` is qualified: "aten::cudnn_batch_norm".
const CpuEquivalent* find_cpu_equivalent(const std::string& name);

}  // namespace torchfake
