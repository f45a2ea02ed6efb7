// Constant propagation: results that follow from one operand alone.
#pragma once

#include <torchfake/core/call.h>

namespace torchfake {

// Note [Absorbing operands]
// `False & x` is False and `True | x` is True, whatever x holds. Programs combine what they know with what they do not:
//
//   is_done = token_is_eos | (length >= max_length)   # unknown | True
//   unfinished = unfinished & ~is_done                # unknown & 0: nothing is unfinished, and the loop ends
//
// Where every element of a known operand absorbs the other operand, the result is known. It is computed by the real
// operator with zeros in the place of what is not known.

// What an operand has to be for the result not to depend on the other.
enum class Absorbs : uint8_t {
  kNothing,
  kZero,  // of and, and of a product of integers
  kTrue,  // of or, of booleans
};

// Says what absorbs in an operator. Set once, at load, by the table of operators.
using AbsorbingLookup = Absorbs (*)(const OpTraits& traits);
void set_absorbing_lookup(AbsorbingLookup lookup);

// Whether the result of a call with one known operand, and one that is not, is known all the same.
bool is_absorbed(const Call& call, int64_t limit);

}  // namespace torchfake
