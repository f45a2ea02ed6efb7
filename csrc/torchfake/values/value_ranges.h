// Constant propagation: bounds of small tensors whose values are not known.
#pragma once

#include <torchfake/core/call.h>
#include <torchfake/core/value_range.h>

namespace torchfake {

// Note [Value ranges]
// Much can be said of values that nobody knows: a softmax lies in [0, 1], an argmax below the size, the sum of a mask in
// [0, count]. Programs ask for just that, to check what they compute:
//
//   assert probs.max() <= 1                  # a softmax, unless it holds a NaN: True is not known, and > 1 is False
//   if mask.sum() > mask.numel(): raise      # False
//   index.clamp(0, 9) < 10                   # True
//
// A fake of at most kRangedElements elements therefore carries bounds, with its storage, where its values are not known.
// A row of a table (rules/value_ranges.cpp) says what an operator makes of the bounds of its arguments. A result whose
// bounds meet is known. Bounds are those of the numbers that the real operator may return: what it rounds is widened, and
// whether a NaN is possible is part of them. A write ends them, like known values.
// Invariant: a call none of whose arguments has bounds, and whose operator makes none, pays nothing.
// Not in a FakeTensorMode, which answers as PyTorch's.

// The most elements of a fake that carries bounds.
inline constexpr int64_t kRangedElements = 64;

// Whether there are ranges in such a mode.
bool has_ranges(const FakeModeOptions& options);

// Whether bounds are kept of the fake: what is cheap to ask.
inline bool has_range(const FakeTensorImpl& fake) {
  c10::StorageImpl* storage = fake.storage_impl();
  const StorageContext* context = storage == nullptr ? nullptr : storage_context(storage);
  return context != nullptr && context->range != nullptr;
}

// The bounds of a fake: those that are kept, those of its known values, or those of its dtype.
ValueRange range_of(const FakeTensorImpl& fake);

// Bounds of the first two results of an operator, before they are rounded to their dtype.
struct RangeAnswer {
  ValueRange first = {};
  ValueRange second = {};
  // How often the first is rounded on the way. 0 for results that are among the numbers of an argument, which neither are
  // rounded nor exceed the dtype.
  double roundings = 0;
};

// The arguments of a call, as ranges.
class RangeQuestion {
 public:
  explicit RangeQuestion(const Call& call) : call_(call) {}

  const Call& call() const {
    return call_;
  }
  const c10::IValue& arg(size_t index) const {
    return call_.arg(index);
  }
  // Of a tensor, of every tensor in a list, or of a number; everything, for None.
  ValueRange range(size_t index) const;

 private:
  const Call& call_;
};

// When an operator has to be asked although none of its arguments carries bounds.
enum class RangeSource : uint8_t {
  kArguments,  // never
  kDtype,  // where the first argument is of a dtype of few values
  kAlways,
};

struct RangeRow {
  const char* names;
  RangeSource source;
  RangeAnswer (*rule)(const RangeQuestion& question);
};

// Whether a call of such an operator makes bounds out of nothing, given its first tensor.
inline bool makes_range(const RangeRow& row, const c10::TensorImpl* first) {
  return row.source == RangeSource::kAlways ||
      (row.source == RangeSource::kDtype && first != nullptr && first->itemsize() == 1);
}

// What the operator's row says of a call.
RangeAnswer ask_range(const Call& call);

// Gives fresh outputs their bounds, or their values where the bounds meet.
void finish_ranges(const Call& call, const RangeAnswer& answer);

}  // namespace torchfake
