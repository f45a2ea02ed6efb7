// The errors of symbolic sizes.
#include <torchfake/symbolic/errors.h>

namespace torchfake {

void raise_dynamic_shapes(const std::string& op, const std::string& detail) {
  throw DynamicShapesError(op, op.empty() ? detail : op + ": " + detail);
}

void raise_unbacked_symbol(const std::string& op, const std::string& detail) {
  throw UnbackedSymbolError(op, op.empty() ? detail : op + ": " + detail);
}

}  // namespace torchfake
