// Beside known_values: large fakes that repeat few values.
#pragma once

#include <torchfake/core/fake_tensor_impl.h>

namespace torchfake {

// Note [Repeated values]
// A mask is often made large by repeating it, and then looked at in a corner.
//
//   mask = torch.ones(2, 1024)                        # known
//   mask = mask[:, None, None, :].expand(2, 1, 1024, 1024)   # a view of it: 2 M elements, 2,048 values
//   mask = 1.0 - mask.float()                         # a storage of 2 M elements
//   (mask[:, 0, 0] > 0).any()
//
// A view that repeats (stride 0) counts by its values. The result of a pointwise operator on such views repeats in the
// same dimensions: the operator is run on one repetition, and the fake's storage remembers the small result and how it
// is laid out over its elements. Views along these dimensions find their values. Views that cut across them are not
// known, and a write ends it all. Kernels that are not pointwise get the repeated view to read. Either ends where a
// tensor has more than kReach times the elements that the mode allows to know.
// A tensor made large at once (`torch.ones(2, 1024, 1024)`) counts by its elements: that is what the limit is for.
constexpr int64_t kReach = 256;

// Whether a fake of so many elements may be read whole, where `limit` values may be known.
inline bool is_readable(int64_t numel, int64_t limit) {
  return numel / kReach <= limit;
}

// The values of a fake as a real CPU tensor with stride 0 where they repeat, or nothing where they are not known or
// more than `limit` of them differ in place.
std::optional<at::Tensor> repeated_tensor(const FakeTensorImpl& fake, int64_t limit);

// Makes the values of `fake` those of `small`, repeated along the dimensions in which `small` has size 1. `fake` must be
// dense and fill its storage.
void make_repeated(const FakeTensorImpl& fake, const at::Tensor& small);

// One repetition each of the arguments of a pointwise operator, in their places: the dimensions along which none of them
// changes become 1. False where what is left has more than `limit` elements.
bool take_one_repetition(torch::jit::Stack& arguments, int64_t limit);

// How many elements of a tensor with repetitions are not zero.
int64_t nonzero_count(const at::Tensor& repeated);

}  // namespace torchfake
