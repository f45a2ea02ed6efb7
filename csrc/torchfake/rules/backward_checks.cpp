// Rules for what the derivative formulas of PyTorch ask of values, where the answer changes nothing of the result's shape:
// an error is raised or not, or the same is computed in another way.
#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/generated/Functions.h>

#include <torchfake/convert/to_fake.h>
#include <torchfake/dispatch/known_values.h>
#include <torchfake/dispatch/plain_cpu.h>
#include <torchfake/rules/decompositions.h>
#include <torchfake/rules/rules.h>

#include <typeinfo>

namespace torchfake {

namespace {

// Whether one of PyTorch's own formulas runs on this thread, and not a backward that somebody wrote in Python.
bool in_derivative_formula() {
  const auto node = torch::autograd::get_current_node();
  return node != nullptr && c10::demangle(typeid(*node).name()).rfind("torch::autograd::generated::", 0) == 0;
}

// The gradients of svd and eig check that the loss does not depend on the phase of the vectors, and raise if it does.
RuleResult allclose(Call& call, const ModePtr& /*mode*/) {
  if (!in_derivative_formula()) {
    return RuleResult::kContinue;
  }
  torch::jit::drop(*call.stack, call.num_args());
  call.stack->emplace_back(true);
  return RuleResult::kAnswered;
}

// The gradient of a product is computed in one of two ways, by whether there are zeros among the factors. Both give the
// same for contiguous factors; what else they lie in decides about the result's strides.
template <typename Backward>
bool multiplies_contiguous(const torch::autograd::Node& node) {
  const auto* product = dynamic_cast<const Backward*>(&node);
  return product != nullptr && product->self_.unpack().is_contiguous();
}

// The gradient of an extremum looks whether it is a NaN, and finds where it is in one way or another.
template <typename... Backward>
bool is_any_of(const torch::autograd::Node& node) {
  return ((dynamic_cast<const Backward*>(&node) != nullptr) || ...);
}

// What a number is taken for that a decomposition or formula asks for, where its outcome does not depend on it.
std::optional<c10::Scalar> stand_in(const at::Tensor& asked) {
  using namespace torch::autograd::generated;
  const bool is_bool = asked.scalar_type() == c10::kBool;
  if (const std::optional<bool> holds = is_bool ? ValidInput::next_check() : std::nullopt) {
    return c10::Scalar(*holds);
  }
  if (FactorsAlone::active() && asked.is_floating_point()) {
    return c10::Scalar(1.0);
  }
  const auto node = torch::autograd::get_current_node();
  if (node == nullptr) {
    return std::nullopt;
  }
  // How many zeros there are.
  if (multiplies_contiguous<ProdBackward1>(*node) || multiplies_contiguous<CumprodBackward0>(*node)) {
    return is_bool ? c10::Scalar(false) : c10::Scalar(int64_t{0});
  }
  if (is_bool && is_any_of<MaxBackward1, MinBackward1, MedianBackward0, NanmedianBackward0>(*node)) {
    return c10::Scalar(false);
  }
  return std::nullopt;
}

RuleResult local_scalar_dense(Call& call, const ModePtr& /*mode*/) {
  const std::optional<c10::Scalar> value = stand_in(call.arg(0).toTensor());
  if (!value) {
    return RuleResult::kContinue;
  }
  torch::jit::drop(*call.stack, call.num_args());
  call.stack->emplace_back(*value);
  return RuleResult::kAnswered;
}

// _unique(self, sorted, return_inverse). The gradient of a value that was written to some places is summed up over them,
// each once.
RuleResult unique(Call& call, const ModePtr& /*mode*/) {
  const auto node = torch::autograd::get_current_node();
  if (node == nullptr || !is_any_of<torch::autograd::generated::IndexFillBackward1>(*node)) {
    return RuleResult::kContinue;
  }
  const at::Tensor self = call.arg(0).toTensor();
  at::Tensor places = at::empty({self.numel()}, self.options());
  torch::jit::drop(*call.stack, call.num_args());
  call.stack->emplace_back(std::move(places));
  call.stack->emplace_back(at::empty({0}, self.options().dtype(c10::kLong)));
  return RuleResult::kAnswered;
}

// Every place of a tensor, as nonzero gives them: which they are follows from its sizes.
RuleResult every_place(Call& call, const at::Tensor& self, const ModePtr& mode) {
  at::Tensor places;
  if (self.numel() * self.dim() <= value_limit(mode->options)) {
    at::Tensor real;
    {
      PlainCpu plain;
      real = at::ones(self.sizes(), at::TensorOptions().dtype(c10::kBool).device(c10::kCPU)).nonzero();
    }
    places = lift(real, mode, /*copy=*/false).to(self.device());
  } else {
    places = to_fake(at::detail::empty_meta({self.numel(), self.dim()}, c10::kLong), mode, self.device());
  }
  torch::jit::drop(*call.stack, call.num_args());
  call.stack->emplace_back(std::move(places));
  return RuleResult::kAnswered;
}

// Asked where they are.
RuleResult nonzero(Call& call, const ModePtr& mode) {
  const at::Tensor self = call.arg(0).toTensor();
  const auto node = torch::autograd::get_current_node();
  if (node == nullptr || !multiplies_contiguous<torch::autograd::generated::ProdBackward0>(*node)) {
    return mode->options.selects_all && call.num_args() == 1 ? every_place(call, self, mode) : RuleResult::kContinue;
  }
  at::Tensor none = at::empty({0, self.dim()}, self.options().dtype(c10::kLong));
  torch::jit::drop(*call.stack, call.num_args());
  call.stack->emplace_back(std::move(none));
  return RuleResult::kAnswered;
}

}  // namespace

Rule find_backward_rule(std::string_view name, std::string_view overload) {
  if (name == "aten::allclose") {
    return &allclose;
  }
  if (name == "aten::_local_scalar_dense" && overload.empty()) {
    return &local_scalar_dense;
  }
  if (name == "aten::_unique") {
    return &unique;
  }
  return name == "aten::nonzero" && overload.empty() ? &nonzero : nullptr;
}

}  // namespace torchfake
