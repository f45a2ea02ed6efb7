// The errors of symbolic sizes, in addition to those of core/errors.h.
#pragma once

#include <torchfake/core/errors.h>

namespace torchfake {

// Numbered after the last kind there; language bindings distinguish the kinds by number.
inline constexpr auto kDynamicShapesKind =
    static_cast<ErrorKind>(static_cast<uint8_t>(ErrorKind::kUnsupportedMutationAliasing) + 1);
inline constexpr auto kUnbackedSymbolKind = static_cast<ErrorKind>(static_cast<uint8_t>(kDynamicShapesKind) + 1);

// A symbolic size where none is supported, symbols of two environments, arithmetic overflow.
using DynamicShapesError = TypedError<kDynamicShapesKind>;
// A decision depends on an unbacked symbol, whose value depends on data.
using UnbackedSymbolError = TypedError<kUnbackedSymbolKind>;

// `op` may be empty.
[[noreturn]] void raise_dynamic_shapes(const std::string& op, const std::string& detail);
[[noreturn]] void raise_unbacked_symbol(const std::string& op, const std::string& detail);

}  // namespace torchfake
