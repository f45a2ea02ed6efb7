// The environment of a mode, whose symbols the sizes of its fakes may contain.
#pragma once

#include <c10/core/Scalar.h>

#include <torchfake/core/fake_mode.h>
#include <torchfake/symbolic/sym_node.h>

namespace torchfake {

// Makes the symbols that operators return for what only data tells, in an environment of whatever kind.
class SymbolSource {
 public:
  virtual ~SymbolSource() = default;
  // Whether sizes, and whether values, may be symbols.
  virtual bool gives_sizes() = 0;
  virtual bool gives_values() = 0;
  // A size between these bounds, both included.
  virtual c10::SymInt new_size(int64_t low, std::optional<int64_t> high) = 0;
  // A value: an integer, a float or a boolean.
  virtual c10::Scalar new_value(ValueType type) = 0;
};

// Null for a mode whose sizes are numbers, and for one whose environment is not torchfake's own. Thread-safe.
ShapeEnvPtr shape_env_of(const ModeState& mode);
// Null for a mode whose sizes are numbers.
std::shared_ptr<SymbolSource> symbol_source_of(const ModeState& mode);

// To be called once, before the mode makes its first symbolic fake. The mode keeps the environment alive.
void set_shape_env(const ModePtr& mode, ShapeEnvPtr env);
// The same for an environment of another kind.
void set_symbol_source(const ModePtr& mode, std::shared_ptr<SymbolSource> source);

}  // namespace torchfake
