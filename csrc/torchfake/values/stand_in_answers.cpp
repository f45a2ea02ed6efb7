// Stand-ins: the values used in place of unknown ones.
#include <torchfake/values/stand_in_answers.h>

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/ops/full.h>

#include <torchfake/core/plain_cpu.h>
#include <torchfake/core/to_fake.h>
#include <torchfake/values/choosing_stand_ins.h>
#include <torchfake/values/known_values.h>
#include <torchfake/values/repeated_values.h>
#include <torchfake/values/value_ranges.h>

namespace torchfake {

bool stands_in(const ModePtr& mode, const std::string& op, std::string_view answer) {
  if (mode->options.stand_ins == nullptr) {
    return false;
  }
  mode->options.stand_ins->on_answer(op, answer);
  return true;
}

c10::Scalar number_in_place(c10::ScalarType dtype) {
  if (dtype == c10::kBool) {
    return c10::Scalar(false);
  }
  return c10::isIntegralType(dtype, /*includeBool=*/false) ? c10::Scalar(int64_t{1}) : c10::Scalar(1.0);
}

namespace {

// The stand-in for the end of a slice. Python clamps it to the size.
constexpr double kLargest = 4611686018427387904.0;

// The stand-in for a boolean. Reading the same tensor again gives the same result, whatever the program does with it;
// except for inference tensors, which have no version counter to detect changes with.
bool truth_in_place(const FakeTensorImpl& asked, ChoosingStandIns* choosing) {
  if (const std::optional<c10::Scalar> before = asked.memo(ValueMemos::kItem); before && before->isBoolean()) {
    return before->toBool();
  }
  const bool truth = choosing != nullptr && choosing->choose(0, 0, 1, /*is_bool=*/true) != 0;
  const_cast<FakeTensorImpl&>(asked).set_memo(ValueMemos::kItem, c10::Scalar(truth));
  return truth;
}

ValueRange known_bounds(const FakeTensorImpl& asked) {
  return has_range(asked) ? range_of(asked) : ValueRange();
}

// The stand-in for a number, within its known bounds: 0 for an index whose only valid value is 0.
c10::Scalar number_in_range(const FakeTensorImpl& asked, StandIns& stand_ins) {
  auto* choosing = dynamic_cast<ChoosingStandIns*>(&stand_ins);
  const c10::ScalarType dtype = asked.dtype().toScalarType();
  if (dtype == c10::kBool) {
    return c10::Scalar(truth_in_place(asked, choosing));
  }
  if (c10::isComplexType(dtype)) {
    return number_in_place(dtype);
  }
  const ValueRange range = known_bounds(asked);
  const double usual = std::min(std::max(1.0, range.low), range.high);
  if (!c10::isIntegralType(dtype, /*includeBool=*/false)) {
    return c10::Scalar(usual);
  }
  const double chosen = choosing == nullptr ? usual : choosing->choose(usual, range.low, range.high, false);
  return c10::Scalar(
      static_cast<int64_t>(std::min(std::max({chosen, range.low, -kLargest}), std::min(range.high, kLargest))));
}

std::string written(const c10::Scalar& number) {
  if (number.isBoolean()) {
    return number.toBool() ? "True, the check passes" : "False";
  }
  if (number.isIntegral(/*includeBool=*/false)) {
    const bool is_end = static_cast<double>(number.toLong()) == kLargest;
    return is_end ? "every element is selected" : std::to_string(number.toLong());
  }
  return number.isFloatingPoint() && number.toDouble() != 1.0 ? c10::str(number.toDouble()) : "1.0";
}

}  // namespace

bool truth_in_place(const ModePtr& mode) {
  auto* choosing = dynamic_cast<ChoosingStandIns*>(mode->options.stand_ins.get());
  return choosing != nullptr && choosing->choose(0, 0, 1, /*is_bool=*/true) != 0;
}

double element_in_place(const FakeTensorImpl& asked) {
  const ValueRange range = known_bounds(asked);
  return std::min(std::max(1.0, range.low), range.high);
}

std::optional<c10::Scalar> number_in_place(const ModePtr& mode, const std::string& op, const FakeTensorImpl& asked) {
  if (mode->options.stand_ins == nullptr) {
    return std::nullopt;
  }
  const c10::Scalar value = number_in_range(asked, *mode->options.stand_ins);
  return stands_in(mode, op, written(value)) ? std::optional(value) : std::nullopt;
}

at::Tensor all_of(bool value, const at::Tensor& like, const ModePtr& mode) {
  // The layout of a pointwise operator's result.
  const std::vector<int64_t> strides = like.is_non_overlapping_and_dense()
      ? like.strides().vec()
      : at::infer_dense_strides(like.sizes(), like.strides());
  at::Tensor fake = to_fake(at::detail::empty_strided_meta(like.sizes(), strides, c10::kBool), mode, like.device());
  PlainCpu plain;
  const auto options = at::TensorOptions().dtype(c10::kBool).device(c10::kCPU);
  if (like.numel() <= value_limit(mode->options)) {
    make_known(*as_fake(fake), at::full(like.sizes(), value, options));
  } else {
    make_repeated(*as_fake(fake), at::full(std::vector<int64_t>(like.dim(), 1), value, options));
  }
  return fake;
}

}  // namespace torchfake
