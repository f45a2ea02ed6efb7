// Constant propagation: the constants of a mode that propagates real tensors, and copies of known values.
#pragma once

#include <torchfake/core/call.h>

namespace torchfake {

// In a mode that propagates real tensors every fake has values, but PyTorch still distinguishes constants: tensors
// created from given values, and results of operators on such tensors only. A tensor remains a constant until something
// else is written to its storage.
void mark_as_constant(const FakeTensorImpl& fake);
bool is_constant(const FakeTensorImpl& fake);
void write_constants(c10::StorageImpl* storage);  // no tensor over the storage is a constant any more

// A copy of the known values of a fake. Fakes that share a storage get copies that share one, and the same copy as long
// as the values do not change.
at::Tensor copy_of_values(const FakeTensorImpl& fake, const at::Tensor& values);

}  // namespace torchfake
