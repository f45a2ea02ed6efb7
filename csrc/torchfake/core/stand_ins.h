// Stand-ins for unknown values, and who is notified of them.
#pragma once

#include <string>
#include <string_view>

namespace torchfake {

// Note [Stand-ins]
// A complete program reads values that fakes do not have: `loss.item()` for a log, `if accuracy > best`. A mode with
// stand-ins supplies a value, and reports each use:
//
//   loss.item()             1.0, or 1 for integers
//   if (x > 3).any():       False
//   torch.isfinite(x)       True everywhere, isnan and isinf False: validity checks pass
//   x[mask], nonzero        everything is selected, which is the maximum
//   assert (x >= 0).all()   True: the condition only guards a raise        values/choosing_stand_ins.h
//   x[:n]                   the largest n
//
// No stand-in is used without being reported, and none in a mode without stand-ins.
// Rejected: values drawn from the program's own distribution. They would look like results.
class StandIns {
 public:
  virtual ~StandIns() = default;

  // Operator `op` uses `answer` ("1.0", "every element") for unknown values. May throw, in which case the call fails
  // with that error.
  virtual void on_answer(const std::string& op, std::string_view answer) = 0;
};

}  // namespace torchfake
