// Stand-ins that depend on what the program does with a number. See Note [Stand-ins].
#pragma once

#include <torchfake/core/stand_ins.h>

namespace torchfake {

// An implementation that can see what the program does with the number it reads may choose a better one than 1.0 or
// False:
//
//   assert (x >= 0).all()   True: the condition does nothing but check
//   x[:n]                   the largest n: everything is selected
class ChoosingStandIns : public StandIns {
 public:
  // Returns the number to use for an unknown one that lies in [low, high]; for a boolean, 0 or 1. `usual` is the
  // default. A result outside of the bounds is clamped.
  virtual double choose(double usual, double low, double high, bool is_bool) = 0;
};

}  // namespace torchfake
