// Constant propagation: bounds of small tensors with unknown values.
#include <torchfake/values/value_ranges.h>

#include <ATen/ops/full.h>

#include <torchfake/core/layout_fake.h>
#include <torchfake/core/plain_cpu.h>
#include <torchfake/values/known_values.h>

#include <cmath>

namespace torchfake {

namespace {

constexpr double kExactInteger = 9007199254740992.0;  // up to here double represents every integer

// Known integers are searched for their bounds up to this number.
constexpr int64_t kSearchedElements = 16384;

template <typename Integer>
ValueRange range_of_integers() {
  const auto low = static_cast<double>(std::numeric_limits<Integer>::min());
  const auto high = static_cast<double>(std::numeric_limits<Integer>::max());
  return {low, high, false};
}

ValueRange range_of_dtype(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::kBool:
      return {0, 1, false};
    case c10::kByte:
      return range_of_integers<uint8_t>();
    case c10::kChar:
      return range_of_integers<int8_t>();
    case c10::kShort:
      return range_of_integers<int16_t>();
    case c10::kInt:
      return range_of_integers<int32_t>();
    default: {
      ValueRange everything;
      everything.may_be_nan = !c10::isIntegralType(dtype, /*includeBool=*/true);
      return everything;
    }
  }
}

// For known values.
ValueRange range_of_values(const at::Tensor& values) {
  PlainCpu plain;
  const at::Tensor numbers = values.to(c10::kDouble);
  const bool has_nan = numbers.isnan().any().item<bool>();
  if (has_nan) {
    return {};
  }
  return {numbers.min().item<double>(), numbers.max().item<double>(), false};
}

ValueRange range_of_number(const c10::Scalar& number) {
  const double value = number.isComplex() ? std::nan("") : number.to<double>();
  return std::isnan(value) ? ValueRange() : ValueRange{value, value, false};
}

ValueRange range_of_tensor(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    return {};
  }
  if (const FakeTensorImpl* fake = as_fake(tensor)) {
    return range_of(*fake);
  }
  const bool is_number = tensor.is_cpu() && tensor.numel() == 1 && !tensor.is_complex() && !is_any_fake(tensor);
  return is_number ? range_of_values(tensor) : range_of_dtype(tensor.scalar_type());
}

double epsilon_of(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::kDouble:
      return std::numeric_limits<double>::epsilon();
    case c10::kFloat:
      return std::numeric_limits<float>::epsilon();
    case c10::kHalf:
      return 0x1p-10;
    default:
      return 0x1p-7;  // bfloat16; no bounds are kept for other dtypes
  }
}

double rounded(double value, c10::ScalarType dtype) {
  switch (dtype) {
    case c10::kDouble:
      return value;
    case c10::kHalf:
      return static_cast<float>(c10::Half(static_cast<float>(value)));
    case c10::kBFloat16:
      return static_cast<float>(c10::BFloat16(static_cast<float>(value)));
    default:
      return static_cast<float>(value);
  }
}

// See Note [Assumed masks].
bool is_assumed(const ValueRange& range, c10::ScalarType dtype) {
  return dtype == c10::kBool && range.low == range.high && range.may_be_nan;
}

// The range as numbers of a dtype, or the dtype's full range if it does not fit.
ValueRange fitted(ValueRange range, c10::ScalarType dtype, double roundings) {
  if (c10::isIntegralType(dtype, /*includeBool=*/true)) {
    const ValueRange most = range_of_dtype(dtype);
    range.low = std::trunc(range.low);
    range.high = std::trunc(range.high);
    const bool fits_low = !range.may_be_nan && range.low >= std::max(most.low, -kExactInteger);
    const bool fits_high = !range.may_be_nan && range.high <= std::min(most.high, kExactInteger);
    if (roundings > 0) {
      return fits_low && fits_high ? range : most;  // integer overflow wraps around
    }
    return {fits_low ? range.low : most.low, fits_high ? range.high : most.high, false};
  }
  const bool is_usual = dtype == c10::kDouble || dtype == c10::kFloat || dtype == c10::kHalf || dtype == c10::kBFloat16;
  if (!is_usual) {
    return {};
  }
  if (roundings > 0) {
    // A single rounding is monotone: the rounded bounds of the exact result bound the rounded result. The spread covers
    // our own bounds, which were computed in double precision.
    const double relative = roundings == 1 ? 4 * std::numeric_limits<double>::epsilon() : epsilon_of(dtype) * roundings;
    const double spread = std::max(std::abs(range.low), std::abs(range.high)) * relative;
    // Rounding preserves the sign.
    range.low = range.low >= 0 ? std::max(range.low - spread, 0.0) : range.low - spread;
    range.high = range.high <= 0 ? std::min(range.high + spread, 0.0) : range.high + spread;
  }
  range.low = rounded(range.low, dtype);
  range.high = rounded(range.high, dtype);
  return std::isnan(range.low) || std::isnan(range.high) ? ValueRange() : range;
}

bool is_known_already(const FakeTensorImpl& fake) {
  const StorageContext* context = storage_context(storage_of(fake));
  return context != nullptr && (context->known || context->repeated);
}

void finish(const RangeRow& row, const c10::IValue& output, const ValueRange& range, double roundings) {
  const FakeTensorImpl* fake = output.isTensor() && output.toTensor().defined() ? as_fake(output.toTensor()) : nullptr;
  if (fake != nullptr && is_assumed(range, fake->dtype().toScalarType())) {
    assume(*fake, range.low != 0);
    return;
  }
  if (fake == nullptr || fake->numel() == 0 || !fills_storage(*fake) || is_known_already(*fake)) {
    return;
  }
  const c10::ScalarType dtype = fake->dtype().toScalarType();
  if (!may_carry_range(row, fake->numel(), c10::isIntegralType(dtype, /*includeBool=*/false))) {
    return;
  }
  const ValueRange kept = fitted(range, dtype, roundings);
  const ValueRange plain = range_of_dtype(dtype);
  if (kept.is_one_value()) {
    PlainCpu guard;
    make_known(*fake, at::full(fake->sizes(), kept.low, at::TensorOptions().dtype(dtype).device(c10::kCPU)));
  } else if (kept.low > plain.low || kept.high < plain.high) {
    set_value_range(storage_of(*fake), fake->claimed_device(), dtype, kept);
  }
}

}  // namespace

bool has_ranges(const FakeModeOptions& options) {
  return !options.exclusive && !options.propagate_real_tensors && options.known_values > 0 &&
      options.known_from_factories;
}

ValueRange range_of(const FakeTensorImpl& fake) {
  const c10::ScalarType dtype = fake.dtype().toScalarType();
  if (fake.is_conj() || fake.is_neg() || fake.has_symbolic_sizes_strides() || c10::isComplexType(dtype)) {
    return {};
  }
  c10::StorageImpl* storage = storage_of(fake);
  const StorageContext* context = storage == nullptr ? nullptr : storage_context(storage);
  if (context != nullptr && context->range != nullptr && context->range_dtype == dtype) {
    return *context->range;
  }
  const bool is_number = c10::isFloatingType(dtype) ? !c10::isFloat8Type(dtype) : c10::isIntegralType(dtype, true);
  if (context != nullptr && is_number && fake.numel() > 0) {
    const int64_t most = c10::isIntegralType(dtype, /*includeBool=*/false) ? kSearchedElements : kRangedElements;
    if (const std::optional<at::Tensor> values = known_tensor(fake, most)) {
      return range_of_values(*values);
    }
  }
  return range_of_dtype(dtype);
}

void assume(const FakeTensorImpl& fake, bool value) {
  if (fake.has_symbolic_sizes_strides()) {
    return;  // has no bounds
  }
  if (fake.numel() > 0 && fills_storage(fake) && !is_known_already(fake)) {
    const double number = value ? 1 : 0;
    set_value_range(storage_of(fake), fake.claimed_device(), c10::kBool, {number, number, /*may_be_nan=*/true});
  }
}

std::optional<bool> assumed_value(const FakeTensorImpl& fake) {
  const ValueRange range = range_of(fake);
  return is_assumed(range, fake.dtype().toScalarType()) ? std::optional(range.low != 0) : std::nullopt;
}

ValueRange RangeQuestion::range(size_t index) const {
  const c10::IValue& value = call_.arg(index);
  if (value.isTensor()) {
    const ValueRange range = range_of_tensor(value.toTensor());
    const bool is_mask = value.toTensor().defined() && is_assumed(range, value.toTensor().scalar_type());
    return is_mask ? range_of_dtype(c10::kBool) : range;
  }
  if (value.isScalar()) {
    return range_of_number(value.toScalar());
  }
  if (!value.isTensorList()) {
    return {};
  }
  const std::vector<at::Tensor> tensors = value.toTensorVector();
  ValueRange all{std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(), false};
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel() == 0) {
      continue;
    }
    const ValueRange one = range_of_tensor(tensor);
    all = {std::min(all.low, one.low), std::max(all.high, one.high), all.may_be_nan || one.may_be_nan};
  }
  return all.low > all.high ? ValueRange() : all;
}

std::optional<bool> RangeQuestion::assumed(size_t index) const {
  const FakeTensorImpl* fake = arg(index).isTensor() ? as_fake(arg(index).toTensor()) : nullptr;
  return fake == nullptr ? std::nullopt : assumed_value(*fake);
}

RangeAnswer ask_range(const Call& call) {
  return call.traits.range->rule(RangeQuestion(call));
}

void finish_ranges(const Call& call, const RangeAnswer& answer) {
  const c10::ArrayRef<c10::IValue> outputs = outputs_of(call);
  if (!outputs.empty()) {
    finish(*call.traits.range, outputs[0], answer.first, answer.roundings);
  }
  if (outputs.size() > 1) {
    finish(*call.traits.range, outputs[1], answer.second, 0);
  }
}

}  // namespace torchfake
