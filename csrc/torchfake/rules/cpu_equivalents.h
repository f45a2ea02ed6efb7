// CPU equivalents of kernels that only a GPU has, to compute known values.
#pragma once

#include <torchfake/core/operator_facts.h>

#include <string>

namespace torchfake {

// The equivalent of an operator, or null. `name` is qualified: "aten::cudnn_batch_norm".
const CpuEquivalent* find_cpu_equivalent(const std::string& name);

}  // namespace torchfake
