// The environment of a mode, whose symbols may appear in the sizes of its fakes.
#pragma once

#include <c10/core/Scalar.h>

#include <torchfake/core/fake_mode.h>
#include <torchfake/symbolic/sym_node.h>

namespace torchfake {

// Creates the symbols that operators return for data-dependent sizes and values, in an environment of any kind.
class SymbolSource {
 public:
  virtual ~SymbolSource() = default;
  // Whether sizes, or values, may be symbols.
  virtual bool gives_sizes() = 0;
  virtual bool gives_values() = 0;
  // A size within these inclusive bounds.
  virtual c10::SymInt new_size(int64_t low, std::optional<int64_t> high) = 0;
  // A value: an integer, a float or a boolean.
  virtual c10::Scalar new_value(ValueType type) = 0;
};

// Null for a mode without symbolic sizes, and for one with an environment other than torchfake's. Thread-safe.
ShapeEnvPtr shape_env_of(const ModeState& mode);
// Null for a mode without symbolic sizes.
std::shared_ptr<SymbolSource> symbol_source_of(const ModeState& mode);

// Must be called once, before the mode creates its first symbolic fake. The mode keeps the environment alive.
void set_shape_env(const ModePtr& mode, ShapeEnvPtr env);
// The same for other kinds of environments.
void set_symbol_source(const ModePtr& mode, std::shared_ptr<SymbolSource> source);

}  // namespace torchfake
