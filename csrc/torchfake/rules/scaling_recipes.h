// How the matrices of a scaled product are scaled, in PyTorch's own terms.
#pragma once

#include <ATen/core/Tensor.h>

namespace torchfake {

// A matrix's dtype, and its scales with the numbers of PyTorch's kinds of scaling.
struct ScalingRecipe {
  c10::ScalarType dtype;
  c10::IntArrayRef kinds;
  c10::ArrayRef<at::Tensor> scales;
};

bool is_by_rows(const ScalingRecipe& recipe);

// Whether a kernel multiplies matrices that are scaled so. A release that does not say which go together is not asked.
bool go_together(const ScalingRecipe& a, const ScalingRecipe& b, bool on_gpu);

}  // namespace torchfake
