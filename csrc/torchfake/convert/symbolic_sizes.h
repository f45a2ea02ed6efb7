// Gives a fake symbolic sizes.
#pragma once

#include <ATen/core/Tensor.h>

#include <torchfake/symbolic/sym_node.h>

#include <map>

namespace torchfake {

// Makes these dimensions of a fake symbols of `env`, with their sizes as hints; an empty name takes the next free one.
// Strides follow from the sizes where the tensor is dense, in whatever order; others stay numbers. Nothing becomes
// symbolic where all sizes are 0 or 1 and the environment specialises these.
// Throws c10::ValueError for a tensor that is no fake, or has symbolic sizes already, and c10::IndexError for a dimension
// that it does not have.
void make_symbolic(
    const at::Tensor& fake,
    const ShapeEnvPtr& env,
    const std::map<int64_t, std::string>& names,
    const std::string& source);

}  // namespace torchfake
