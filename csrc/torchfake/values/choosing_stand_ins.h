// Stand-ins that depend on what the program does with a number. See Note [Stand-ins].
#pragma once

#include <torchfake/core/stand_ins.h>

namespace torchfake {

// Who can tell what the program does with the number it reads chooses a better one than 1.0 or False:
//
//   assert (x >= 0).all()   True: the condition does nothing but check
//   x[:n]                   the largest n: everything is selected
class ChoosingStandIns : public StandIns {
 public:
  // The number to use for an unknown one that lies in [low, high], and would otherwise be `usual`: 0 or 1 for a boolean.
  // A result outside of the bounds is clamped.
  virtual double choose(double usual, double low, double high, bool is_bool) = 0;
};

}  // namespace torchfake
