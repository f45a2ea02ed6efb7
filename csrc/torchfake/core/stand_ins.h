// Answers in the place of values that nobody knows: who hears of them.
#pragma once

#include <string>
#include <string_view>

namespace torchfake {

// Note [Stand-ins]
// A program that is run whole reads values which fakes do not have: `loss.item()` for a log, `if accuracy > best`. A mode
// with stand-ins answers in their place, and tells of each answer:
//
//   loss.item()             1.0, 1 for integers
//   if (x > 3).any():       False
//   torch.isfinite(x)       True everywhere; isnan and isinf False: a check of values passes
//   x[mask], nonzero        everything is selected, the most that can be
//
// Nothing is answered so without telling, and nothing in a mode that has no stand-ins.
// Rejected: values that follow the program's own distribution. They would look like results.
class StandIns {
 public:
  virtual ~StandIns() = default;

  // Operator `op` gets `answer` ("1.0", "every element") for values that are not known. May throw; the call then fails
  // with that.
  virtual void on_answer(const std::string& op, std::string_view answer) = 0;
};

}  // namespace torchfake
