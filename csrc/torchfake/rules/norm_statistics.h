// The statistics that normalisation saves for the backward: they differ between CPU and GPUs.
#pragma once

#include <ATen/AccumulateType.h>
#include <ATen/native/cpu/mixed_data_type.h>

#include <torchfake/rules/kernels.h>
#include <torchfake/rules/results.h>

namespace torchfake {

using TwoTensors = std::tuple<at::Tensor, at::Tensor>;
using ThreeTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

// The dtype of saved statistics: a GPU uses its accumulation type; the CPU uses the dtype of the parameters, which may
// be float for inputs of lower precision.
template <typename... Params>
c10::ScalarType statistics_dtype(const at::Tensor& input, const Params&... params) {
  if (!claimed_device().is_cpu()) {
    return at::toAccumulateType(input.scalar_type(), /*is_cuda=*/true);
  }
  const bool mixed = at::native::is_mixed_type(input, params...);
  if (mixed) {
    at::native::check_mixed_data_type(input, params...);
  }
  return at::native::param_scalar_type(input, mixed);
}

// The part of normalization_kernels() that normalises over a batch.
KernelList batch_norm_kernels();

}  // namespace torchfake
