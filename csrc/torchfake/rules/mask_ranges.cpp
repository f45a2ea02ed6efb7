// Bounds of booleans, including masks of invalid values that are assumed to be empty. See Note [Assumed masks].
#include <torchfake/rules/value_ranges.h>

namespace torchfake {

namespace {

using Question = RangeQuestion;
using Answer = RangeAnswer;

Answer assumed_mask(bool value) {
  return {{value ? 1.0 : 0.0, value ? 1.0 : 0.0, /*may_be_nan=*/true}};
}

// isnan, isinf: assumed to find no invalid value. See Note [Assumed masks].
Answer finds_nothing(const Question& q) {
  const FakeTensorImpl* fake = as_fake(q.arg(0).toTensor());
  const bool is_assumed = fake != nullptr && fake->mode()->options.assumes_valid;
  return is_assumed ? assumed_mask(false) : Answer{};
}

// Only for assumed masks.
Answer opposite(const Question& q) {
  const std::optional<bool> mask = q.assumed(0);
  return mask ? assumed_mask(!*mask) : Answer{};
}

template <bool kAnd>
Answer combined(const Question& q) {
  const std::optional<bool> first = q.assumed(0);
  const std::optional<bool> second = q.assumed(1);
  return first && second ? assumed_mask(kAnd ? *first && *second : *first || *second) : Answer{};
}

// any, all
Answer any_or_all(const Question& q) {
  if (const std::optional<bool> mask = q.assumed(0)) {
    return {{*mask ? 1.0 : 0.0, *mask ? 1.0 : 0.0, false}};
  }
  const ValueRange in = q.range(0);
  const at::Tensor self = q.arg(0).toTensor();
  const bool is_truth = self.scalar_type() == c10::kBool && self.numel() > 0;
  return is_truth ? Answer{{in.low, in.high, false}} : Answer{{0, 1, false}};
}

constexpr RangeRow kRows[] = {
    {"logical_not", RangeSource::kArguments, &range_of_not},
    {"isnan. isinf.", RangeSource::kAlways, &finds_nothing},
    {"any. all.", RangeSource::kArguments, &any_or_all},
    {"bitwise_not", RangeSource::kArguments, &opposite},
    {"bitwise_or.Tensor logical_or", RangeSource::kArguments, &combined<false>},
    {"bitwise_and.Tensor logical_and", RangeSource::kArguments, &combined<true>},
};

}  // namespace

RangeAnswer range_of_not(const RangeQuestion& q) {
  if (const std::optional<bool> mask = q.assumed(0)) {
    return assumed_mask(!*mask);
  }
  const ValueRange in = q.range(0);
  const bool never_zero = in.low > 0 || in.high < 0;
  return {{in.low == 0 && in.high == 0 && !in.may_be_nan ? 1.0 : 0.0, never_zero ? 0.0 : 1.0, false}};
}

c10::ArrayRef<RangeRow> mask_range_rows() {
  return kRows;
}

}  // namespace torchfake
