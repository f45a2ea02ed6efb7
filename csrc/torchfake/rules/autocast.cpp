// Rules for operators that autocast does not cast but whose kernels call operators that it does.
#include <ATen/ops/empty.h>

#include <torchfake/core/kernel_environment.h>
#include <torchfake/rules/rules.h>

#include <cmath>

namespace torchfake {

namespace {

bool is_cast(const at::Tensor& tensor) {
  return tensor.is_cuda() && KernelEnvironment::autocast_enabled(c10::kCUDA);
}

// Whether the CPU kernel concatenates parts of its first argument, which is not empty.
bool concatenates(const Call& call, const at::Tensor& self) {
  const std::string_view name = call.traits.base_name();
  if (name == "linalg_matrix_exp") {
    return self.dim() >= 2 && self.size(-1) > 1;
  }
  if (name == "unique_consecutive") {
    return call.arg(3).isInt() &&
        (self.dim() > 1 || call.arg(3).toInt() != 0);  // along the only dimension: same as without one
  }
  if (name == "isin") {
    // Sorts both if that is expected to be faster.
    return static_cast<double>(call.arg(1).toTensor().numel()) >=
        std::floor(10 * std::pow(static_cast<double>(self.numel()), 0.145));
  }
  return true;
}

// trace(self) is the sum of the diagonal.
RuleResult trace(Call& call, const ModePtr& /*mode*/) {
  const at::Tensor self = call.arg(0).toTensor();
  return is_cast(self) && self.dim() == 2 ? answer_with(call, self.diagonal().sum()) : RuleResult::kContinue;
}

// linalg_matrix_exp(self) of 1x1 matrices is an elementwise exp. A batch is scaled by powers, which autocast computes in
// single precision. Of a single matrix, the values decide whether it is: then the half-precision result is refused.
RuleResult matrix_exp(Call& call, const ModePtr& /*mode*/) {
  const at::Tensor self = call.arg(0).toTensor();
  if (!is_cast(self) || self.dim() < 2 || self.size(-1) != self.size(-2)) {
    return RuleResult::kContinue;
  }
  const int64_t size = self.size(-1);
  if (size == 1) {
    return answer_with(call, self.exp());
  }
  const bool is_batch = size > 0 && self.numel() > size * size;
  return is_batch && c10::isReducedFloatingType(self.scalar_type())
      ? answer_with(call, at::empty(self.sizes(), self.options().dtype(c10::kFloat)))
      : RuleResult::kContinue;
}

}  // namespace

// The CPU kernel concatenates in a half precision other than autocast's.
void check_autocast_concatenation(const Call& call, c10::Device device) {
  if (!device.is_cpu() || !KernelEnvironment::autocast_enabled(c10::kCPU)) {
    return;
  }
  const at::Tensor self = call.arg(0).toTensor();
  const c10::ScalarType dtype = self.scalar_type();
  TORCH_CHECK(
      !c10::isReducedFloatingType(dtype) || dtype == KernelEnvironment::autocast_dtype(c10::kCPU) ||
          self.numel() == 0 || !concatenates(call, self),
      "Unexpected floating ScalarType in at::autocast::prioritize: ",
      call.op_name(),
      " concatenates ",
      dtype,
      ", and autocast casts to ",
      KernelEnvironment::autocast_dtype(c10::kCPU));
}

RuleList autocast_rules() {
  return {
      {"trace.", &trace},
      {"linalg_matrix_exp.", &matrix_exp},
  };
}

}  // namespace torchfake
