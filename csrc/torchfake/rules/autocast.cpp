// Rules for operators that autocast does not cast, and whose kernels call others that it does.
#include <torchfake/core/kernel_environment.h>
#include <torchfake/rules/rules.h>

#include <cmath>

namespace torchfake {

namespace {

bool is_cast(const at::Tensor& tensor) {
  return tensor.is_cuda() && KernelEnvironment::autocast_enabled(c10::kCUDA);
}

// Whether the CPU's kernel concatenates parts of its first argument.
bool concatenates(const Call& call) {
  const std::string& name = call.traits.name;
  const at::Tensor self = call.arg(0).isTensor() ? call.arg(0).toTensor() : at::Tensor();
  if (!self.defined() || self.numel() == 0) {
    return false;
  }
  if (name == "aten::roll" || name == "aten::unique_dim" || name == "aten::unique_dim_consecutive") {
    return true;
  }
  if (name == "aten::linalg_matrix_exp") {
    return self.dim() >= 2 && self.size(-1) > 1;
  }
  if (name == "aten::unique_consecutive") {
    return call.arg(3).isInt() && (self.dim() > 1 || call.arg(3).toInt() != 0);  // by the only one it is as by none
  }
  // It sorts both where there is much to look for, as it reckons.
  return name == "aten::isin" && call.traits.overload == "Tensor_Tensor" &&
      static_cast<double>(call.arg(1).toTensor().numel()) >=
      std::floor(10 * std::pow(static_cast<double>(self.numel()), 0.145));
}

// trace(self) is the sum of the diagonal.
RuleResult trace(Call& call, const ModePtr& /*mode*/) {
  const at::Tensor self = call.arg(0).toTensor();
  return is_cast(self) && self.dim() == 2 ? answer_with(call, self.diagonal().sum()) : RuleResult::kContinue;
}

// linalg_matrix_exp(self) of matrices of one number is its exponential.
RuleResult matrix_exp(Call& call, const ModePtr& /*mode*/) {
  const at::Tensor self = call.arg(0).toTensor();
  const bool is_number = self.dim() >= 2 && self.size(-1) == 1 && self.size(-2) == 1;
  return is_cast(self) && is_number ? answer_with(call, self.exp()) : RuleResult::kContinue;
}

}  // namespace

void refuse_under_autocast(const Call& call, c10::Device device) {
  if (C10_LIKELY(!device.is_cpu() || !KernelEnvironment::autocast_enabled(c10::kCPU)) || !call.traits.is_aten ||
      call.tensors().empty()) {
    return;
  }
  const c10::ScalarType dtype = c10::typeMetaToScalarType(call.tensors().front().impl->dtype());
  TORCH_CHECK(
      !c10::isReducedFloatingType(dtype) || dtype == KernelEnvironment::autocast_dtype(c10::kCPU) ||
          !concatenates(call),
      "Unexpected floating ScalarType in at::autocast::prioritize: ",
      call.op_name(),
      " concatenates ",
      dtype,
      ", and autocast casts to ",
      KernelEnvironment::autocast_dtype(c10::kCPU));
}

Rule find_autocast_rule(std::string_view name, std::string_view overload) {
  if (!overload.empty()) {
    return nullptr;
  }
  if (name == "aten::trace") {
    return &trace;
  }
  return name == "aten::linalg_matrix_exp" ? &matrix_exp : nullptr;
}

}  // namespace torchfake
