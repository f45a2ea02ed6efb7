// Gives a fake symbolic sizes.
#pragma once

#include <ATen/core/Tensor.h>

#include <torchfake/symbolic/sym_node.h>

#include <map>

namespace torchfake {

// Replaces these dimensions of a fake by symbols of `env`, with the current sizes as hints. An empty name selects the
// next free one. Strides are expressed in the sizes if the tensor is dense, in any order of dimensions; others stay
// numbers. Nothing becomes symbolic if all sizes are 0 or 1 and the environment specialises these. Throws
// c10::ValueError for a tensor that is not a fake or already has symbolic sizes, and c10::IndexError for a dimension
// out of range.
void make_symbolic(
    const at::Tensor& fake,
    const ShapeEnvPtr& env,
    const std::map<int64_t, std::string>& names,
    const std::string& source);

}  // namespace torchfake
