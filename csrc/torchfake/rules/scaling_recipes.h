// How the matrices of a scaled product are scaled, in PyTorch's terms.
#pragma once

#include <ATen/core/Tensor.h>

namespace torchfake {

// A matrix's dtype and its scales, with PyTorch's numbers for the kinds of scaling.
struct ScalingRecipe {
  c10::ScalarType dtype;
  c10::IntArrayRef kinds;
  c10::ArrayRef<at::Tensor> scales;
};

// Whether each row has one scale.
bool is_by_rows(const ScalingRecipe& recipe);

// Whether a kernel supports this combination. Releases that do not define the combinations are not checked.
bool go_together(const ScalingRecipe& a, const ScalingRecipe& b, bool on_gpu);

}  // namespace torchfake
