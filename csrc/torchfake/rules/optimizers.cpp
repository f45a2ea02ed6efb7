// Fused optimizer steps, gradient scaling, and steps with a tensor of factors: operators that write their arguments.
#include <torchfake/core/fake_tensor_impl.h>
#include <torchfake/rules/forms.h>
#include <torchfake/rules/results.h>

namespace torchfake {

namespace {

// The kernels iterate over the memory of a parameter and its state tensors in parallel, without bounds checks.
void check_beside(at::TensorList params, at::TensorList others, const char* name) {
  TORCH_CHECK(
      params.size() == others.size(),
      "a fused optimizer step takes as many ",
      name,
      " as parameters, got ",
      others.size(),
      " and ",
      params.size());
  for (size_t i = 0; i < params.size(); ++i) {
    const bool dense = params[i].is_non_overlapping_and_dense() && others[i].is_non_overlapping_and_dense();
    TORCH_CHECK(
        others[i].numel() == params[i].numel() && (dense || params[i].numel() == 0),
        "a fused optimizer step takes dense ",
        name,
        " of the parameters' size ",
        params[i].sizes(),
        ", got ",
        others[i].sizes(),
        " at ",
        i);
  }
}

// Step counts: one number per parameter.
void check_steps(at::TensorList params, at::TensorList steps) {
  TORCH_CHECK(
      params.size() == steps.size(),
      "a fused optimizer step takes one step count per parameter, got ",
      steps.size(),
      " and ",
      params.size());
  for (const at::Tensor& step : steps) {
    TORCH_CHECK(step.numel() == 1, "a fused optimizer step takes step counts of one element, got ", step.sizes());
  }
}

// Buffers that are required by an option, and an empty list without it.
void check_optional(at::TensorList params, at::TensorList others, bool wanted, const char* name) {
  TORCH_CHECK(
      wanted || others.empty() || !claimed_device().is_cpu(),
      "a fused optimizer step does not need ",
      name,
      ", and got ",
      others.size());
  if (wanted || !others.empty()) {
    check_beside(params, others, name);
  }
}

void fused_sgd(
    at::TensorList params,
    at::TensorList grads,
    at::TensorList momenta,
    double /*weight_decay*/,
    double momentum) {
  check_beside(params, grads, "gradients");
  check_optional(params, momenta, momentum != 0, "momenta");
}

template <typename Rate>
void fused_adam(
    at::TensorList params,
    at::TensorList grads,
    at::TensorList averages,
    at::TensorList squares,
    at::TensorList maxima,
    at::TensorList steps,
    Rate /*lr*/,
    double /*beta1*/,
    double /*beta2*/,
    double /*weight_decay*/,
    double /*eps*/,
    bool amsgrad) {
  check_beside(params, grads, "gradients");
  check_beside(params, averages, "averages");
  check_beside(params, squares, "averages of squares");
  check_optional(params, maxima, amsgrad, "maxima");
  check_steps(params, steps);
}

void fused_adagrad(at::TensorList params, at::TensorList grads, at::TensorList sums, at::TensorList steps) {
  check_beside(params, grads, "gradients");
  check_beside(params, sums, "sums");
  check_steps(params, steps);
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

// One number per tensor, packed into one CPU tensor. Their values do not affect the shapes of the results.
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
      kernel<ops::_fused_adam_, &fused_adam<double>>(),
      kernel<ops::_fused_adam__tensor_lr, &fused_adam<const at::Tensor&>>(),
      kernel<ops::_fused_adamw_, &fused_adam<double>>(),
      kernel<ops::_fused_adamw__tensor_lr, &fused_adam<const at::Tensor&>>(),
      kernel<ops::_fused_sgd_, &fused_sgd>(),
      kernel<ops::_fused_sgd__tensor_lr, &fused_sgd>(),
      kernel<ops::_fused_adagrad_, &fused_adagrad>(),
      kernel<ops::_fused_adagrad__tensor_lr, &fused_adagrad>(),
      kernel<ops::_amp_foreach_non_finite_check_and_unscale_, &unscale>(),
      kernel<ops::_amp_update_scale_, &update_scale>(),
      kernel<ops::_foreach_addcdiv_Tensor, &with_packed_numbers<ops::_foreach_addcdiv_ScalarList>>(),
      kernel<ops::_foreach_addcdiv__Tensor, &write_with_packed_numbers<ops::_foreach_addcdiv__ScalarList>>(),
      kernel<ops::_foreach_addcmul_Tensor, &with_packed_numbers<ops::_foreach_addcmul_ScalarList>>(),
      kernel<ops::_foreach_addcmul__Tensor, &write_with_packed_numbers<ops::_foreach_addcmul__ScalarList>>(),
  };
}

}  // namespace torchfake
