// The fused steps of optimizers, and what scales gradients: they write their arguments.
#include <torchfake/rules/forms.h>
#include <torchfake/rules/results.h>

namespace torchfake {

namespace {

void check_same_number(at::TensorList params, at::TensorList grads) {
  TORCH_CHECK(
      params.size() == grads.size(),
      "a fused optimizer step takes as many gradients as parameters, got ",
      grads.size(),
      " and ",
      params.size());
}

void unscale(at::TensorList /*tensors*/, const at::Tensor& found_inf, const at::Tensor& inv_scale) {
  TORCH_CHECK(inv_scale.numel() == 1, "inv_scale must be a 1-element tensor.");
  TORCH_CHECK(found_inf.numel() == 1, "found_inf must be a 1-element tensor.");
  TORCH_CHECK(inv_scale.scalar_type() == c10::kFloat, "inv_scale must be a float tensor.");
  TORCH_CHECK(found_inf.scalar_type() == c10::kFloat, "found_inf must be a float tensor.");
}

at::Tensor& update_scale(at::Tensor& current_scale, const at::Tensor& growth_tracker, const at::Tensor& found_inf) {
  TORCH_CHECK(growth_tracker.numel() == 1, "growth_tracker must be a 1-element tensor.");
  TORCH_CHECK(current_scale.numel() == 1, "current_scale must be a 1-element tensor.");
  TORCH_CHECK(found_inf.numel() == 1, "found_inf must be a 1-element tensor.");
  TORCH_CHECK(growth_tracker.scalar_type() == c10::kInt, "growth_tracker must be an int tensor.");
  TORCH_CHECK(current_scale.scalar_type() == c10::kFloat, "current_scale must be a float tensor.");
  TORCH_CHECK(found_inf.scalar_type() == c10::kFloat, "found_inf must be a float tensor.");
  return current_scale;
}

}  // namespace

KernelList optimizer_kernels() {
  namespace ops = at::_ops;
  return {
      kernel<ops::_fused_adam_, &check_same_number>(),
      kernel<ops::_fused_adam__tensor_lr, &check_same_number>(),
      kernel<ops::_fused_adamw_, &check_same_number>(),
      kernel<ops::_fused_adamw__tensor_lr, &check_same_number>(),
      kernel<ops::_fused_sgd_, &check_same_number>(),
      kernel<ops::_fused_sgd__tensor_lr, &check_same_number>(),
      kernel<ops::_fused_adagrad_, &check_same_number>(),
      kernel<ops::_fused_adagrad__tensor_lr, &check_same_number>(),
      kernel<ops::_amp_foreach_non_finite_check_and_unscale_, &unscale>(),
      kernel<ops::_amp_update_scale_, &update_scale>(),
  };
}

}  // namespace torchfake
