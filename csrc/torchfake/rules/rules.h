// Rules: what the engine knows of an operator beyond its meta kernel. One file per family of operators.
#pragma once

#include <torchfake/dispatch/call.h>

namespace torchfake {

enum class RuleResult : uint8_t {
  kContinue,  // go on to the meta kernel, with the arguments as the rule left them
  kAnswered,  // the outputs are on the stack, as a meta kernel would have left them
};

// Runs before the meta kernel, outside of it: its tensors are fakes that answer their claimed device. The rule of an
// operator whose result is a value runs where that value is not known.
using Rule = RuleResult (*)(Call& call, const ModePtr& mode);

// Puts what an operator returns on the stack, in the place of its arguments.
template <typename... Values>
RuleResult answer_with(const Call& call, Values&&... values) {
  torch::jit::drop(*call.stack, call.num_args());
  (call.stack->emplace_back(std::forward<Values>(values)), ...);
  return RuleResult::kAnswered;
}

// The rule of an operator ("aten::index"), or null.
Rule find_rule(const OpTraits& traits);

// The keys on which autograd sees a dense tensor of any device a fake may claim, and Fake, which takes over where
// autograd is out of the way.
inline constexpr std::array<c10::DispatchKey, 13> kDenseAutogradKeys = {
    c10::DispatchKey::AutogradCPU,
    c10::DispatchKey::AutogradCUDA,
    c10::DispatchKey::AutogradXPU,
    c10::DispatchKey::AutogradMPS,
    c10::DispatchKey::AutogradHPU,
    c10::DispatchKey::AutogradMTIA,
    c10::DispatchKey::AutogradXLA,
    c10::DispatchKey::AutogradIPU,
    c10::DispatchKey::AutogradLazy,
    c10::DispatchKey::AutogradMAIA,
    c10::DispatchKey::AutogradPrivateUse1,
    c10::DispatchKey::AutogradOther,
    c10::DispatchKey::Fake,
};

// Families. Each returns its rule for the operator, or null.
Rule find_indexing_rule(std::string_view name, std::string_view overload);
Rule find_sequence_rule(std::string_view name, std::string_view overload);
Rule find_view_rule(std::string_view name, std::string_view overload);
Rule find_attention_rule(std::string_view name, std::string_view overload);
Rule find_question_rule(std::string_view name, std::string_view overload);
Rule find_autocast_rule(std::string_view name, std::string_view overload);
Rule find_argument_check(std::string_view name, std::string_view overload);

// Throws where the CPU's kernel concatenates in a half precision that is not autocast's.
void refuse_under_autocast(const Call& call, c10::Device device);

}  // namespace torchfake
