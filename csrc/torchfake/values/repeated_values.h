// Constant propagation: large fakes that repeat few values.
#pragma once

#include <torchfake/core/fake_tensor_impl.h>

namespace torchfake {

// Note [Repeated values]
// A mask is often expanded to a large tensor by repeating it, of which a small part is then read.
//
//   mask = torch.ones(2, 1024)                        # known
//   mask = mask[:, None, None, :].expand(2, 1, 1024, 1024)   # a view of it: 2 M elements, 2,048 values
//   mask = 1.0 - mask.float()                         # a storage of 2 M elements
//   (mask[:, 0, 0] > 0).any()
//
// A view with repetitions (stride 0) is measured by the number of its distinct elements. The result of a pointwise
// operator on such views repeats along the same dimensions: the operator runs on one repetition, and the fake's storage
// keeps the small result and its layout. Views along these dimensions find their values. Views that cut across them are
// unknown, and any write makes all values unknown. Operators that are not pointwise read the repeated view. Neither
// applies to a tensor with more than kReach times the number of elements that the mode allows to be known.
// A tensor created large at once (`torch.ones(2, 1024, 1024)`) is measured by all its elements: the limit exists for
// such tensors.
constexpr int64_t kReach = 256;

// Whether a fake with this many elements may be read as a whole if `limit` values may be known.
inline bool is_readable(int64_t numel, int64_t limit) {
  return numel / kReach <= limit;
}

// The values of a fake as a real CPU tensor with stride 0 along repetitions, or nullopt if they are unknown or if there
// are more than `limit` without repetitions.
std::optional<at::Tensor> repeated_tensor(const FakeTensorImpl& fake, int64_t limit);

// Sets the values of `fake` to those of `small`, repeated along the dimensions in which `small` has size 1. `fake` must
// be dense and fill its storage.
void make_repeated(const FakeTensorImpl& fake, const at::Tensor& small);

// Reduces each argument of a pointwise operator, in place, to one repetition: dimensions along which no argument varies
// become 1. Returns false if more than `limit` elements remain.
bool take_one_repetition(torch::jit::Stack& arguments, int64_t limit);

// The number of nonzero elements of a tensor with repetitions.
int64_t nonzero_count(const at::Tensor& repeated);

}  // namespace torchfake
