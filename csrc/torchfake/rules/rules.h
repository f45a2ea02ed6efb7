// Rules, which run before a call's kernel. One file per family of operators.
#pragma once

#include <torchfake/core/call.h>
#include <torchfake/core/dispatch_keys.h>

namespace torchfake {

// Replaces the arguments on the stack by the operator's results.
template <typename... Values>
RuleResult answer_with(const Call& call, Values&&... values) {
  torch::jit::drop(*call.stack, call.num_args());
  (call.stack->emplace_back(std::forward<Values>(values)), ...);
  return RuleResult::kAnswered;
}

// The rule of some operators, named as in the table of operators (rules/operator_table.h).
struct RuleRow {
  const char* names;
  Rule rule;
};
using RuleList = std::vector<RuleRow>;

// Families.
RuleList indexing_rules();
RuleList sequence_rules();
RuleList view_rules();
RuleList attention_rules();
RuleList question_rules();
RuleList autocast_rules();
RuleList argument_checks();
RuleList determinism_rules();

// Checks named in the table.
void check_embedding_rows(const Call& call, int64_t limit);  // the rows selected from an embedding
void check_classes(const Call& call, int64_t limit);  // the target classes of a loss
void check_determinism(const Call& call);  // kernels that refuse torch.use_deterministic_algorithms(True)
void check_bincount(const Call& call, int64_t limit);  // the same for bincount, whose result known values determine
void check_autocast_concatenation(const Call& call, c10::Device device);

}  // namespace torchfake
