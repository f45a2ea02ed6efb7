// The list of rule families.
#include <torchfake/rules/rules.h>

namespace torchfake {

Rule find_rule(const OpTraits& traits) {
  for (const auto find :
       {&find_indexing_rule,
        &find_sequence_rule,
        &find_view_rule,
        &find_attention_rule,
        &find_question_rule,
        &find_autocast_rule,
        &find_argument_check}) {
    if (const Rule rule = find(traits.name, traits.overload)) {
      return rule;
    }
  }
  return nullptr;
}

}  // namespace torchfake
