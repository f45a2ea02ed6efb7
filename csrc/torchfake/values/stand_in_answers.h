// What is answered in the place of values that nobody knows. See Note [Stand-ins].
#pragma once

#include <torchfake/core/fake_tensor_impl.h>

namespace torchfake {

// Whether the mode has stand-ins. If it has, they hear that `op` gets `answer`. Throws what they throw.
bool stands_in(const ModePtr& mode, const std::string& op, std::string_view answer);

// The number that stands for an unknown one: 1, of the dtype's kind, and false for a truth.
c10::Scalar number_in_place(c10::ScalarType dtype);

// The number for the one element of `asked`, within its bounds where they are known, told to the mode's stand-ins;
// nothing where there are none.
std::optional<c10::Scalar> number_in_place(const ModePtr& mode, const std::string& op, const FakeTensorImpl& asked);

// A fake of these sizes that is known to hold `value` everywhere, whatever its size.
at::Tensor all_of(bool value, const at::Tensor& like, const ModePtr& mode);

}  // namespace torchfake
