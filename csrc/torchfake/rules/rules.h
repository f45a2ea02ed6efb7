// Rules: what the engine knows of an operator beyond its meta kernel. One file per family of operators.
#pragma once

#include <torchfake/dispatch/call.h>

namespace torchfake {

enum class RuleResult : uint8_t {
  kContinue,  // go on to the meta kernel, with the arguments as the rule left them
  kAnswered,  // the outputs are on the stack, as a meta kernel would have left them
};

// Runs before the meta kernel, outside of it: its tensors are fakes that answer their claimed device.
using Rule = RuleResult (*)(Call& call, const ModePtr& mode);

// The rule of an operator ("aten::index"), or null.
Rule find_rule(const OpTraits& traits);

// Families. Each returns its rule for the operator, or null.
Rule find_indexing_rule(std::string_view name, std::string_view overload);

}  // namespace torchfake
