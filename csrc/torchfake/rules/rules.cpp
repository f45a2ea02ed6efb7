// The list of rule families.
#include <torchfake/rules/rules.h>

namespace torchfake {

Rule find_rule(const OpTraits& traits) {
  return find_indexing_rule(traits.name, traits.overload);
}

}  // namespace torchfake
