// Constant propagation: results determined by a single operand.
#pragma once

#include <torchfake/core/call.h>

namespace torchfake {

// Note [Absorbing operands]
// `False & x` is False and `True | x` is True for any x. Programs combine known with unknown values:
//
//   is_done = token_is_eos | (length >= max_length)   # unknown | True
//   unfinished = unfinished & ~is_done                # unknown & 0: nothing is unfinished, and the loop ends
//
// If every element of a known operand is absorbing, the result is known. It is computed by the real operator, with
// zeros in place of the unknown operand.

// The value that makes the result independent of the other operand.
enum class Absorbs : uint8_t {
  kNothing,
  kZero,  // for `and`, and for integer products
  kTrue,  // for `or` of booleans
};

// Returns the absorbing value of an operator. Set once, at load time, by the table of operators.
using AbsorbingLookup = Absorbs (*)(const OpTraits& traits);
void set_absorbing_lookup(AbsorbingLookup lookup);

// Whether the result of a call with one known and one unknown operand is known nevertheless.
bool is_absorbed(const Call& call, int64_t limit);

}  // namespace torchfake
