// Bounds of operators' results. See Note [Value ranges].
#include <torchfake/rules/value_ranges.h>

#include <ATen/native/TypeProperties.h>
#include <ATen/ops/result_type_native.h>
#include <c10/core/WrapDimMinimal.h>

#include <torchfake/core/kernel_environment.h>
#include <torchfake/rules/operator_table.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace torchfake {

namespace {

using Question = RangeQuestion;
using Answer = RangeAnswer;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

bool is_finite(const ValueRange& range) {
  return std::isfinite(range.low) && std::isfinite(range.high);
}

// ---- Functions of one argument --------------------------------------------------------------------------------------

Answer unchanged(const Question& q) {
  return {q.range(0)};
}

// In [0, 1]. May be NaN if there is an infinity among the numbers normalised together.
Answer softmax(const Question& q) {
  const ValueRange in = q.range(0);
  return {{0, 1, in.may_be_nan || !is_finite(in)}};
}

Answer log_softmax(const Question& q) {
  return {{-kInfinity, 0, softmax(q).first.may_be_nan}};
}

Answer sigmoid(const Question& q) {
  return {{0, 1, q.range(0).may_be_nan}};
}

Answer tanh(const Question& q) {
  return {{-1, 1, q.range(0).may_be_nan}};
}

Answer sine(const Question& q) {
  const ValueRange in = q.range(0);
  return {{-1, 1, in.may_be_nan || !is_finite(in)}};
}

Answer relu(const Question& q) {
  const ValueRange in = q.range(0);
  return {{std::max(in.low, 0.0), std::max(in.high, 0.0), in.may_be_nan}};
}

Answer absolute(const Question& q) {
  const ValueRange in = q.range(0);
  const bool crosses = in.low <= 0 && in.high >= 0;
  const double low = std::abs(in.low);
  const double high = std::abs(in.high);
  // The smallest integer has no positive counterpart: its absolute value is itself.
  const bool may_wrap =
      q.arg(0).isTensor() && c10::isIntegralType(q.arg(0).toTensor().scalar_type(), false) && !std::isfinite(in.low);
  return {{may_wrap ? -kInfinity : (crosses ? 0 : std::min(low, high)), std::max(low, high), in.may_be_nan}};
}

Answer exponential(const Question& q) {
  const ValueRange in = q.range(0);
  return {{std::exp(in.low), std::exp(in.high), in.may_be_nan}, {}, 8};
}

Answer square_root(const Question& q) {
  const ValueRange in = q.range(0);
  return {
      {in.low > 0 ? std::sqrt(in.low) : 0, in.high > 0 ? std::sqrt(in.high) : 0, in.may_be_nan || in.low < 0}, {}, 4};
}

template <double (*kRound)(double)>
Answer to_whole(const Question& q) {
  const ValueRange in = q.range(0);
  return {{kRound(in.low), kRound(in.high), in.may_be_nan}};
}

Answer negative(const Question& q) {
  const ValueRange in = q.range(0);
  return {{-in.high, -in.low, in.may_be_nan}, {}, 1};  // the smallest integer has no positive counterpart
}

// Conversion to another dtype. To bool: whether the number is nonzero.
Answer to_copy(const Question& q) {
  const c10::IValue& dtype = q.arg(1);
  if (dtype.isInt() && dtype.toScalarType() == c10::kBool) {
    const ValueRange none = range_of_not(q).first;
    return {{1 - none.high, 1 - none.low, none.may_be_nan}};
  }
  const bool to_whole = dtype.isInt() && c10::isIntegralType(dtype.toScalarType(), /*includeBool=*/false);
  return {q.range(0), {}, to_whole ? 1.0 : 0.0};
}

Answer not_negative(const Question& /*q*/) {
  return {{0, kInfinity, true}};
}

// ---- Indices and counts ---------------------------------------------------------------------------------------------

int64_t size_along(const Question& q, size_t arg) {
  const at::Tensor self = q.arg(0).toTensor();
  if (self.dim() == 0) {
    return 1;
  }
  return arg < q.call().num_args() && q.arg(arg).isInt()
      ? self.size(c10::maybe_wrap_dim(q.arg(arg).toInt(), self.dim()))
      : self.numel();
}

ValueRange below(double size) {
  return {0, std::max(size - 1, 0.0), false};
}

Answer arg_extremum(const Question& q) {
  return {below(static_cast<double>(size_along(q, 1)))};
}

// (values, indices) along the dimension in argument kDim.
template <size_t kDim>
Answer values_and_indices(const Question& q) {
  return {q.range(0), below(static_cast<double>(size_along(q, kDim)))};
}

Answer drawn_categories(const Question& q) {
  const at::Tensor weights = q.arg(0).toTensor();
  return {below(static_cast<double>(weights.dim() == 0 ? 1 : weights.size(-1)))};
}

// The number of elements that a reduction combines, over the dimensions in argument 1.
double reduced_count(const Question& q) {
  const at::Tensor self = q.arg(0).toTensor();
  if (!(q.call().num_args() > 1 && q.arg(1).isIntList()) || q.arg(1).toIntVector().empty() || self.dim() == 0) {
    return static_cast<double>(self.numel());
  }
  double count = 1;
  for (const int64_t dim : q.arg(1).toIntVector()) {
    count *= static_cast<double>(self.size(c10::maybe_wrap_dim(dim, self.dim())));
  }
  return count;
}

Answer sum(const Question& q) {
  ValueRange in = q.range(0);
  const double count = reduced_count(q);
  if (count == 0) {
    return {{0, 0, false}};
  }
  if (const std::optional<bool> mask = q.assumed(0);
      mask && count == static_cast<double>(q.arg(0).toTensor().numel())) {
    in = {*mask ? 1.0 : 0.0, *mask ? 1.0 : 0.0, false};
  }
  return {{count * in.low, count * in.high, in.may_be_nan || !is_finite(in)}, {}, count};
}

Answer count_nonzero(const Question& q) {
  return {{0, reduced_count(q), false}};
}

Answer mean(const Question& q) {
  const ValueRange in = q.range(0);
  const double count = reduced_count(q);
  return {{in.low, in.high, in.may_be_nan || !is_finite(in) || count == 0}, {}, count + 1};
}

// ---- Arithmetic -----------------------------------------------------------------------------------------------------

// The bounds of a result whose extremes are at the corners of its operands' ranges.
ValueRange corners(const ValueRange& a, const ValueRange& b, double (*of)(double, double)) {
  const bool may_be_nan = a.may_be_nan || b.may_be_nan || !is_finite(a) || !is_finite(b);
  ValueRange result{kInfinity, -kInfinity, may_be_nan};
  for (const double x : {a.low, a.high}) {
    for (const double y : {b.low, b.high}) {
      const double value = of(x, y);
      if (std::isnan(value)) {
        return {};
      }
      result.low = std::min(result.low, value);
      result.high = std::max(result.high, value);
    }
  }
  return result;
}

double plus(double a, double b) {
  return a + b;
}
double times(double a, double b) {
  return a * b;
}

// `a + alpha * b`; with kSign = -1, `a - alpha * b`.
template <int kSign, size_t kFirst, size_t kSecond>
Answer sum_of_two(const Question& q) {
  const double alpha = q.call().num_args() > 2 && q.arg(2).isScalar() ? q.arg(2).toScalar().to<double>() : 1;
  const ValueRange factor{kSign * alpha, kSign * alpha, std::isnan(alpha)};
  return {
      corners(q.range(kFirst), corners(q.range(kSecond), factor, &times), &plus), {}, std::abs(alpha) == 1 ? 1.0 : 3.0};
}

Answer product(const Question& q) {
  return {corners(q.range(0), q.range(1), &times), {}, 1};
}

Answer quotient(const Question& q) {
  const ValueRange by = q.range(1);
  if (by.low <= 0 && by.high >= 0) {
    return {};
  }
  return {corners(q.range(0), {1 / by.high, 1 / by.low, by.may_be_nan}, &times), {}, 2};
}

Answer maximum(const Question& q) {
  const ValueRange a = q.range(0);
  const ValueRange b = q.range(1);
  return {{std::max(a.low, b.low), std::max(a.high, b.high), a.may_be_nan || b.may_be_nan}};
}

Answer minimum(const Question& q) {
  const ValueRange a = q.range(0);
  const ValueRange b = q.range(1);
  return {{std::min(a.low, b.low), std::min(a.high, b.high), a.may_be_nan || b.may_be_nan}};
}

// clamp(self, min, max): the upper bound wins.
template <size_t kMin, size_t kMax>
Answer clamp(const Question& q) {
  const auto given = [&](size_t arg) { return arg > 0 && !q.arg(arg).isNone(); };
  const ValueRange in = q.range(0);
  const ValueRange least = given(kMin) ? q.range(kMin) : ValueRange{-kInfinity, -kInfinity, false};
  const ValueRange most = given(kMax) ? q.range(kMax) : ValueRange{kInfinity, kInfinity, false};
  return {
      {std::min(std::max(in.low, least.low), most.low),
       std::min(std::max(in.high, least.high), most.high),
       in.may_be_nan || least.may_be_nan || most.may_be_nan}};
}

// The remainder of an integer division by a positive number.
Answer remainder(const Question& q) {
  const ValueRange by = q.range(1);
  const at::Tensor self = q.arg(0).toTensor();
  const bool is_whole = c10::isIntegralType(self.scalar_type(), /*includeBool=*/false) && by.low > 0 &&
      by.low == by.high && std::trunc(by.low) == by.low;
  return is_whole ? Answer{below(by.high)} : Answer{};
}

ValueRange either(const ValueRange& a, const ValueRange& b) {
  return {std::min(a.low, b.low), std::max(a.high, b.high), a.may_be_nan || b.may_be_nan};
}

// ---- Comparisons ----------------------------------------------------------------------------------------------------

constexpr ValueRange kTruth{0, 1, false};
constexpr ValueRange kTrue{1, 1, false};
constexpr ValueRange kFalse{0, 0, false};

struct Operands {
  ValueRange first, second;
  bool is_same = false;  // both are the same tensor, which holds no NaN
};

// The operands of a comparison, converted to their common dtype.
Operands operands_of(const Question& q) {
  const at::Tensor self = q.arg(0).toTensor();
  const bool with_tensor = q.arg(1).isTensor();
  const c10::ScalarType dtype = with_tensor
      ? at::native::result_type(
            at::native::update_result_type_state(q.arg(1).toTensor(), at::native::update_result_type_state(self, {})))
      : at::native::result_type(self, q.arg(1).toScalar());
  const auto converted = [&](const ValueRange& range) -> ValueRange {
    if (c10::isIntegralType(dtype, /*includeBool=*/true) || dtype == c10::kDouble) {
      return range;
    }
    if (dtype == c10::kFloat) {
      return {static_cast<float>(range.low), static_cast<float>(range.high), range.may_be_nan};
    }
    if (dtype == c10::kHalf) {
      return {
          static_cast<float>(c10::Half(static_cast<float>(range.low))),
          static_cast<float>(c10::Half(static_cast<float>(range.high))),
          range.may_be_nan};
    }
    if (dtype == c10::kBFloat16) {
      return {
          static_cast<float>(c10::BFloat16(static_cast<float>(range.low))),
          static_cast<float>(c10::BFloat16(static_cast<float>(range.high))),
          range.may_be_nan};
    }
    return {};
  };
  const bool is_same =
      with_tensor && self.is_same(q.arg(1).toTensor()) && c10::isIntegralType(self.scalar_type(), /*includeBool=*/true);
  return {converted(q.range(0)), converted(q.range(1)), is_same};
}

// A comparison with a NaN is False.
ValueRange less(const ValueRange& a, const ValueRange& b) {
  if (a.low >= b.high) {
    return kFalse;
  }
  return a.high < b.low && !a.may_be_nan && !b.may_be_nan ? kTrue : kTruth;
}

ValueRange less_or_equal(const ValueRange& a, const ValueRange& b) {
  if (a.low > b.high) {
    return kFalse;
  }
  return a.high <= b.low && !a.may_be_nan && !b.may_be_nan ? kTrue : kTruth;
}

Answer lt(const Question& q) {
  const Operands x = operands_of(q);
  return {x.is_same ? kFalse : less(x.first, x.second)};
}
Answer gt(const Question& q) {
  const Operands x = operands_of(q);
  return {x.is_same ? kFalse : less(x.second, x.first)};
}
Answer le(const Question& q) {
  const Operands x = operands_of(q);
  return {x.is_same ? kTrue : less_or_equal(x.first, x.second)};
}
Answer ge(const Question& q) {
  const Operands x = operands_of(q);
  return {x.is_same ? kTrue : less_or_equal(x.second, x.first)};
}

ValueRange equal(const Operands& x) {
  if (x.is_same) {
    return kTrue;
  }
  if (x.first.high < x.second.low || x.second.high < x.first.low) {
    return kFalse;
  }
  const bool agree = x.first.is_one_value() && x.second.is_one_value() && x.first.low == x.second.low;
  return agree ? kTrue : kTruth;
}

Answer eq(const Question& q) {
  return {equal(operands_of(q))};
}
Answer ne(const Question& q) {
  const ValueRange is_equal = equal(operands_of(q));
  return {{1 - is_equal.high, 1 - is_equal.low, false}};
}

// ---- Selection ------------------------------------------------------------------------------------------------------

Answer where(const Question& q) {
  return {either(q.range(1), q.range(2))};
}

// masked_fill(self, mask, value)
Answer masked_fill(const Question& q) {
  return {either(q.range(0), q.range(2))};
}

// ---- Random numbers -------------------------------------------------------------------------------------------------

// rand(...) is below 1 in float and double. In other dtypes rounding may produce 1 itself.
Answer uniform(const Question& q) {
  c10::ScalarType dtype = KernelEnvironment::default_dtype();
  for (size_t i = 0; i < q.call().num_args(); ++i) {
    if (q.arg(i).isTensor()) {
      dtype = q.arg(i).toTensor().scalar_type();
    }
    if (q.call().op.schema().arguments()[i].name() == "dtype" && q.arg(i).isInt()) {
      dtype = q.arg(i).toScalarType();
    }
  }
  switch (dtype) {
    case c10::kFloat:
      return {{0, std::nextafter(1.0F, 0.0F), false}};
    case c10::kDouble:
      return {{0, std::nextafter(1.0, 0.0), false}};
    default:
      return {{0, 1, false}};  // a GPU draws in single precision and rounds the result
  }
}

Answer of_integers(const Question& q) {
  double low = 0;
  double high = kInfinity;
  for (size_t i = 0; i < q.call().num_args(); ++i) {
    const std::string& name = q.call().op.schema().arguments()[i].name();
    if (q.arg(i).isInt() && (name == "low" || name == "high")) {
      (name == "low" ? low : high) = static_cast<double>(q.arg(i).toInt());
    }
  }
  return std::isinf(high) ? Answer{} : Answer{{low, high - 1, false}};
}

Answer permutation(const Question& q) {
  return q.arg(0).isInt() ? Answer{below(static_cast<double>(q.arg(0).toInt()))} : Answer{};
}

Answer truth(const Question& /*q*/) {
  return {kTruth};
}

constexpr RangeRow kRows[] = {
    {"clone alias contiguous flip roll repeat expand_copy index_select gather index.Tensor take tril triu "
     "max. min. amax amin median.",
     RangeSource::kArguments,
     &unchanged,
     true},
    {"_to_copy", RangeSource::kDtype, &to_copy, true},
    {"_softmax _safe_softmax", RangeSource::kAlways, &softmax},
    {"_log_softmax", RangeSource::kAlways, &log_softmax},
    {"sigmoid", RangeSource::kAlways, &sigmoid},
    {"tanh erf", RangeSource::kAlways, &tanh},
    {"sin cos", RangeSource::kAlways, &sine},
    {"relu", RangeSource::kAlways, &relu},
    {"abs", RangeSource::kAlways, &absolute},
    {"exp", RangeSource::kAlways, &exponential},
    {"sqrt", RangeSource::kAlways, &square_root},
    {"floor", RangeSource::kArguments, &to_whole<&std::floor>},
    {"ceil", RangeSource::kArguments, &to_whole<&std::ceil>},
    {"trunc", RangeSource::kArguments, &to_whole<&std::trunc>},
    {"round.", RangeSource::kArguments, &to_whole<&std::nearbyint>},
    {"neg", RangeSource::kArguments, &negative},
    {"linalg_vector_norm std.correction var.correction", RangeSource::kAlways, &not_negative},
    {"argmax argmin", RangeSource::kAlways, &arg_extremum, true},
    {"max.dim min.dim median.dim nanmedian.dim mode cummax cummin", RangeSource::kAlways, &values_and_indices<1>, true},
    {"sort.", RangeSource::kAlways, &values_and_indices<1>, true},
    {"sort.stable topk kthvalue", RangeSource::kAlways, &values_and_indices<2>, true},
    {"multinomial", RangeSource::kAlways, &drawn_categories, true},
    {"sum. sum.dim_IntList", RangeSource::kDtype, &sum},
    {"count_nonzero.dim_IntList", RangeSource::kAlways, &count_nonzero},
    {"mean. mean.dim", RangeSource::kArguments, &mean},
    {"add.Tensor add.Scalar", RangeSource::kArguments, &sum_of_two<1, 0, 1>, true},
    {"sub.Tensor sub.Scalar", RangeSource::kArguments, &sum_of_two<-1, 0, 1>, true},
    {"rsub.Tensor rsub.Scalar", RangeSource::kArguments, &sum_of_two<-1, 1, 0>},
    {"mul.Tensor mul.Scalar", RangeSource::kArguments, &product, true},
    {"div.Tensor div.Scalar", RangeSource::kArguments, &quotient},
    {"maximum", RangeSource::kArguments, &maximum},
    {"minimum", RangeSource::kArguments, &minimum},
    {"clamp clip", RangeSource::kAlways, &clamp<1, 2>},
    {"clamp_min", RangeSource::kAlways, &clamp<1, 0>},
    {"clamp_max", RangeSource::kAlways, &clamp<0, 1>},
    {"remainder.Scalar remainder.Tensor", RangeSource::kAlways, &remainder},
    {"lt.Scalar lt.Tensor", RangeSource::kArguments, &lt},
    {"gt.Scalar gt.Tensor", RangeSource::kArguments, &gt},
    {"le.Scalar le.Tensor", RangeSource::kArguments, &le},
    {"ge.Scalar ge.Tensor", RangeSource::kArguments, &ge},
    {"eq.Scalar eq.Tensor", RangeSource::kArguments, &eq},
    {"ne.Scalar ne.Tensor", RangeSource::kArguments, &ne},
    {"where.self where.ScalarOther where.ScalarSelf where.Scalar", RangeSource::kArguments, &where, true},
    {"masked_fill", RangeSource::kArguments, &masked_fill},
    {"cat stack", RangeSource::kArguments, &unchanged, true},
    {"rand rand_like", RangeSource::kAlways, &uniform},
    {"randint randint_like", RangeSource::kAlways, &of_integers, true},
    {"randperm", RangeSource::kAlways, &permutation, true},
    {"bernoulli", RangeSource::kAlways, &truth},
};

}  // namespace

const RangeRow* find_range_row(const c10::OperatorHandle& op) {
  const c10::OperatorName& whole = op.operator_name();
  const std::string_view name = whole.name;
  const std::string_view library = name.substr(0, name.find("::"));
  const auto find = [&](c10::ArrayRef<RangeRow> rows) {
    return std::find_if(rows.begin(), rows.end(), [&](const RangeRow& row) {
      return names_operator(row.names, library, name.substr(library.size() + 2), whole.overload_name);
    });
  };
  for (const c10::ArrayRef<RangeRow> rows : {c10::ArrayRef<RangeRow>(kRows), mask_range_rows()}) {
    if (const auto* row = find(rows); row != rows.end()) {
      return row;
    }
  }
  return nullptr;
}

}  // namespace torchfake
