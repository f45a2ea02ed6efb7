// Constant propagation: bounds of small tensors with unknown values.
#pragma once

#include <torchfake/core/call.h>
#include <torchfake/core/value_range.h>

namespace torchfake {

// Note [Value ranges]
// Unknown values often have known bounds: a softmax lies in [0, 1], an argmax is below the size, the sum of a mask lies
// in [0, count]. Programs compare with exactly these bounds to check their results:
//
//   assert probs.max() <= 1                  # of a softmax: unknown, since there may be a NaN, but `> 1` is False
//   if mask.sum() > mask.numel(): raise      # False
//   index.clamp(0, 9) < 10                   # True
//
// A fake of at most kRangedElements elements with unknown values therefore carries bounds, attached to its storage.
// Integers that are classes or positions carry them at any size, since sizes follow from the largest of them:
//
//   labels = torch.randint(0, 10, (50000,))
//   F.one_hot(labels), torch.bincount(labels), torch.unique(labels)    # under stand-ins: 10 classes
//
// A row of a table (rules/value_ranges.cpp) derives the bounds of an operator's results from those of its arguments. If
// lower and upper bound are equal, the value is known. The bounds hold for the numbers that the real operator may
// return: they are widened by rounding errors, and include whether a NaN is possible. A write discards them, like known
// values.
// Invariant: a call whose arguments carry no bounds, and whose operator produces none, pays nothing.
// No bounds are kept in a FakeTensorMode, which behaves like PyTorch's.

// Note [Assumed masks]
// `fake_mode()` assumes that checks for invalid values pass. Models check their own values:
//
//   if torch.isinf(x).any() or torch.isnan(x).any(): x = torch.clamp(...)    # False
//   x[~torch.isnan(x)]                                                       # the shape is still unknown
//
// The elements of isnan and isinf are therefore assumed to be False, those of isfinite True. The assumption is used
// only where they are reduced to a single value: by any, all or sum, or by reading the only element. Such a mask is
// marked by bounds that allow NaN, which no boolean can be. They may belong to a tensor of any size.
// Invariant: an assumed mask has no known values, so what it selects is unknown.
// Rejected: making the values of the mask known. Sizes would then depend on the assumption.

// The largest number of elements for which a fake carries bounds.
inline constexpr int64_t kRangedElements = 64;

// Whether a mode with these options keeps bounds.
bool has_ranges(const FakeModeOptions& options);

// Whether the fake carries stored bounds. Cheap.
inline bool has_range(const FakeTensorImpl& fake) {
  c10::StorageImpl* storage = fake.storage_impl();
  const StorageContext* context = storage == nullptr ? nullptr : storage_context(storage);
  return context != nullptr && context->range != nullptr;
}

// The bounds of a fake: the stored ones, those of its known values, or those of its dtype.
ValueRange range_of(const FakeTensorImpl& fake);

// Marks a fresh fake of booleans as an assumed mask, unless its values are known.
void assume(const FakeTensorImpl& fake, bool value);

// The assumed value of every element of a fake; nullopt if the fake is not an assumed mask.
std::optional<bool> assumed_value(const FakeTensorImpl& fake);

// Bounds of the first two results of an operator, before rounding to their dtypes.
struct RangeAnswer {
  ValueRange first = {};
  ValueRange second = {};
  // How often the computation of the first result rounds. 0 if the results are elements of an argument, which are not
  // rounded and cannot exceed the dtype.
  double roundings = 0;
};

// The arguments of a call as ranges.
class RangeQuestion {
 public:
  explicit RangeQuestion(const Call& call) : call_(call) {}

  const Call& call() const {
    return call_;
  }
  const c10::IValue& arg(size_t index) const {
    return call_.arg(index);
  }
  // The bounds of a tensor, of all tensors of a list together, or of a number; unbounded for None, and both values for
  // an assumed mask.
  ValueRange range(size_t index) const;
  // The assumed value of every element of a tensor; nullopt if the tensor is not an assumed mask.
  std::optional<bool> assumed(size_t index) const;

 private:
  const Call& call_;
};

// When an operator produces bounds although none of its arguments carries any.
enum class RangeSource : uint8_t {
  kArguments,  // never
  kDtype,  // if the first argument's dtype has few values
  kAlways,
};

struct RangeRow {
  const char* names;
  RangeSource source;
  RangeAnswer (*rule)(const RangeQuestion& question);
  // Whether integers among the results carry bounds however many they are.
  bool any_size = false;
};

// Whether a result of so many elements may carry bounds.
inline bool may_carry_range(const RangeRow& row, int64_t numel, bool is_integer) {
  return numel <= kRangedElements || (row.any_size && is_integer);
}

// Whether a call of such an operator produces bounds without any among its arguments, given its first tensor.
inline bool makes_range(const RangeRow& row, const c10::TensorImpl* first) {
  return row.source == RangeSource::kAlways ||
      (row.source == RangeSource::kDtype && first != nullptr && first->itemsize() == 1);
}

// Evaluates the operator's row for a call.
RangeAnswer ask_range(const Call& call);

// Stores the bounds of fresh outputs, or their values if lower and upper bound are equal.
void finish_ranges(const Call& call, const RangeAnswer& answer);

}  // namespace torchfake
