// Rules for questions about values that have an answer without them.
#include <torchfake/core/errors.h>
#include <torchfake/rules/decompositions.h>
#include <torchfake/rules/rules.h>

namespace torchfake {

namespace {

bool same_memory(const at::Tensor& self, const at::Tensor& other) {
  return self.dtype() == other.dtype() && self.is_alias_of(other) && self.storage_offset() == other.storage_offset() &&
      self.strides() == other.strides() && self.is_conj() == other.is_conj() && self.is_neg() == other.is_neg();
}

// equal(self, other). The real kernels take a tensor for equal to itself whatever it holds, a NaN too.
RuleResult equal(Call& call, const ModePtr& mode) {
  const at::Tensor self = call.arg(0).toTensor();
  const at::Tensor other = call.arg(1).toTensor();
  // How PyTorch's C++ asks whether a check holds.
  const bool is_check = self.dim() == 0 && self.scalar_type() == c10::kBool;
  if (const std::optional<bool> holds = is_check ? ValidInput::next_check() : std::nullopt) {
    torch::jit::drop(*call.stack, call.num_args());
    call.stack->emplace_back(*holds);
    return RuleResult::kAnswered;
  }
  const bool known = self.sizes() != other.sizes() || self.numel() == 0 || same_memory(self, other);
  if (!known && !mode->options.distinct_tensors_differ) {
    raise(
        ErrorKind::kDataDependentOutput,
        call.op_name(),
        "whether two tensors are equal depends on their values, and these fake tensors hold none. Values are known "
        "only where they follow from small constants; keep this branch out of the fake run, or make the mode with "
        "distinct_tensors_differ.");
  }
  const bool answer = self.sizes() == other.sizes() && (self.numel() == 0 || same_memory(self, other));
  torch::jit::drop(*call.stack, call.num_args());
  call.stack->emplace_back(answer);
  return RuleResult::kAnswered;
}

}  // namespace

Rule find_comparing_rule(std::string_view name, std::string_view overload) {
  return name == "aten::equal" && overload.empty() ? &equal : nullptr;
}

}  // namespace torchfake
