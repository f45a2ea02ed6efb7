// The environment of a mode, whose symbols the sizes of its fakes may contain.
#pragma once

#include <torchfake/core/fake_mode.h>
#include <torchfake/symbolic/sym_node.h>

namespace torchfake {

// Null for a mode whose sizes are numbers. Thread-safe.
ShapeEnvPtr shape_env_of(const ModeState& mode);

// To be called once, before the mode makes its first symbolic fake. The mode keeps the environment alive.
void set_shape_env(const ModePtr& mode, ShapeEnvPtr env);

}  // namespace torchfake
