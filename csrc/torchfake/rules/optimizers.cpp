// The fused steps of optimizers, what scales gradients, and steps with a tensor of factors: they write their arguments.
#include <torchfake/core/fake_tensor_impl.h>
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

// A number for each tensor, packed in one on the CPU. What they are changes nothing of the results' shapes.
std::vector<at::Scalar> packed_numbers(const at::Tensor& scalars, size_t count) {
  const FakeTensorImpl* fake = as_fake(scalars);
  const c10::Device device = fake != nullptr ? fake->claimed_device() : scalars.device();
  TORCH_CHECK(device.is_cpu(), "Expected scalars to be on CPU, got ", device, " instead.");
  TORCH_CHECK(scalars.is_contiguous(), "Expected scalars to be contiguous.");
  TORCH_CHECK(
      scalars.dim() == 1, "Expected packed scalar Tensor to be of dimension 1. Got ", scalars.dim(), " instead.");
  TORCH_CHECK(
      scalars.numel() == static_cast<int64_t>(count),
      "Expected length of scalars to match input of length ",
      count,
      " but got ",
      scalars.numel(),
      " instead.");
  const bool whole = c10::isIntegralType(scalars.scalar_type(), /*includeBool=*/true);
  return std::vector<at::Scalar>(count, whole ? at::Scalar(1) : at::Scalar(1.0));
}

template <typename Op>
std::vector<at::Tensor> with_packed_numbers(
    at::TensorList self,
    at::TensorList tensor1,
    at::TensorList tensor2,
    const at::Tensor& scalars) {
  return Op::call(self, tensor1, tensor2, packed_numbers(scalars, self.size()));
}

template <typename Op>
void write_with_packed_numbers(
    at::TensorList self,
    at::TensorList tensor1,
    at::TensorList tensor2,
    const at::Tensor& scalars) {
  Op::call(self, tensor1, tensor2, packed_numbers(scalars, self.size()));
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
      kernel<ops::_foreach_addcdiv_Tensor, &with_packed_numbers<ops::_foreach_addcdiv_ScalarList>>(),
      kernel<ops::_foreach_addcdiv__Tensor, &write_with_packed_numbers<ops::_foreach_addcdiv__ScalarList>>(),
      kernel<ops::_foreach_addcmul_Tensor, &with_packed_numbers<ops::_foreach_addcmul_ScalarList>>(),
      kernel<ops::_foreach_addcmul__Tensor, &write_with_packed_numbers<ops::_foreach_addcmul__ScalarList>>(),
  };
}

}  // namespace torchfake
