// Stand-ins: the values used in place of unknown ones. See Note [Stand-ins].
#pragma once

#include <torchfake/core/fake_tensor_impl.h>

namespace torchfake {

// Whether the mode has stand-ins. If so, notifies them that `answer` is used for `op`. Throws what they throw.
bool stands_in(const ModePtr& mode, const std::string& op, std::string_view answer);

// The number used in place of an unknown one: 1 in the dtype's kind, or false for booleans.
c10::Scalar number_in_place(c10::ScalarType dtype);

// Whether a condition that C++ code answers holds under stand-ins: True if it only guards a `raise`, else False.
bool truth_in_place(const ModePtr& mode);

// The stand-in for each element of a tensor whose elements are read together: 1, or the nearest within its bounds.
double element_in_place(const FakeTensorImpl& asked);

// The number used for the single element of `asked`, within its bounds if known; notifies the mode's stand-ins. Returns
// nullopt if the mode has none.
std::optional<c10::Scalar> number_in_place(const ModePtr& mode, const std::string& op, const FakeTensorImpl& asked);

// A boolean fake shaped like `like` with the known value `value` in every element, whatever its size.
at::Tensor all_of(bool value, const at::Tensor& like, const ModePtr& mode);

}  // namespace torchfake
