// Rules for operators that autocast does not cast, and whose kernels for a GPU call others that it does.
#include <ATen/autocast_mode.h>

#include <torchfake/rules/rules.h>

namespace torchfake {

namespace {

bool is_cast(const at::Tensor& tensor) {
  return tensor.is_cuda() && at::autocast::is_autocast_enabled(c10::kCUDA);
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
