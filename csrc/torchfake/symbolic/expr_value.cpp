// The values of symbolic expressions.
#include <torchfake/symbolic/expr.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace torchfake {

namespace {

std::optional<Value> integer_of(double value) {
  constexpr double kLimit = 9223372036854775808.0;  // 2**63
  if (!(value >= -kLimit && value < kLimit)) {
    return std::nullopt;
  }
  return Value::of(static_cast<int64_t>(value));
}

std::optional<int64_t> power(int64_t base, int64_t exponent) {
  if (exponent < 0) {
    return std::nullopt;
  }
  int64_t result = 1;
  while (exponent > 0) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) {
      return std::nullopt;
    }
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) {
      return std::nullopt;
    }
  }
  return result;
}

// a/b, rounded once, as Python's. Neither a double nor a long double can hold every operand and the quotient.
double true_quotient(int64_t a, int64_t b) {
  constexpr int64_t kExact = int64_t{1} << 53;
  if (a == 0 || (a >= -kExact && a <= kExact && b >= -kExact && b <= kExact)) {
    return static_cast<double>(a) / static_cast<double>(b);
  }
  using Wide = unsigned __int128;
  const auto magnitude = [](int64_t value) { return value < 0 ? -static_cast<uint64_t>(value) : uint64_t(value); };
  const int shift = 64 + __builtin_clzll(magnitude(a));
  const Wide dividend = static_cast<Wide>(magnitude(a)) << shift;
  // At least 64 bits; the last one stands for all that follow.
  const Wide quotient = dividend / magnitude(b) | static_cast<Wide>(dividend % magnitude(b) != 0);
  const double result = std::ldexp(static_cast<double>(quotient), -shift);
  return (a < 0) == (b < 0) ? result : -result;
}

std::optional<Value> narrowed(__int128 value) {
  const auto narrow = static_cast<int64_t>(value);
  return narrow == value ? std::optional(Value::of(narrow)) : std::nullopt;
}

// Terms may be larger than their sum, and factors than a product with zero.
std::optional<Value> linear(const Expr& shape, c10::ArrayRef<Value> args) {
  if (shape.op == Op::kSum) {
    __int128 sum = shape.number;
    for (size_t i = 0; i < args.size(); ++i) {
      if (__builtin_add_overflow(sum, static_cast<__int128>(shape.coefficients[i]) * args[i].integer, &sum)) {
        return std::nullopt;
      }
    }
    return narrowed(sum);
  }
  if (std::any_of(args.begin(), args.end(), [](const Value& factor) { return factor.integer == 0; })) {
    return Value::of(int64_t{0});
  }
  int64_t product = 1;
  for (size_t i = 0; i < args.size(); ++i) {
    const std::optional<int64_t> factor = power(args[i].integer, shape.coefficients[i]);
    if (!factor || __builtin_mul_overflow(product, *factor, &product)) {
      return std::nullopt;
    }
  }
  return Value::of(product);
}

std::optional<Value> integers(Op op, int64_t a, int64_t b) {
  switch (op) {
    case Op::kFloorDiv:
    case Op::kMod: {
      if (b == 0 || (a == std::numeric_limits<int64_t>::min() && b == -1)) {
        return b == -1 && op == Op::kMod ? std::optional(Value::of(int64_t{0})) : std::nullopt;
      }
      const int64_t remainder = a % b;
      const bool adjust = remainder != 0 && (remainder < 0) != (b < 0);
      return Value::of(op == Op::kFloorDiv ? a / b - (adjust ? 1 : 0) : remainder + (adjust ? b : 0));
    }
    case Op::kPow: {
      const std::optional<int64_t> result = power(a, b);
      return result ? std::optional(Value::of(*result)) : std::nullopt;
    }
    case Op::kBitAnd:
      return Value::of(a & b);
    case Op::kBitOr:
      return Value::of(a | b);
    case Op::kBitXor:
      return Value::of(a ^ b);
    case Op::kShiftLeft: {
      const std::optional<int64_t> factor = b >= 0 && b < 63 ? std::optional(int64_t{1} << b) : std::nullopt;
      int64_t result = 0;
      if (!factor || __builtin_mul_overflow(a, *factor, &result)) {
        return std::nullopt;
      }
      return Value::of(result);
    }
    case Op::kShiftRight:
      return b < 0 ? std::nullopt : std::optional(Value::of(a >> std::min<int64_t>(b, 63)));
    default:
      return std::nullopt;
  }
}

std::optional<Value> floats(Op op, double a, double b) {
  switch (op) {
    case Op::kFloatAdd:
      return Value::of(a + b);
    case Op::kFloatSub:
      return Value::of(a - b);
    case Op::kFloatMul:
      return Value::of(a * b);
    case Op::kFloatDiv:
      return b == 0 ? std::nullopt : std::optional(Value::of(a / b));
    case Op::kFloatMod: {
      if (b == 0) {
        return std::nullopt;
      }
      const double remainder = std::fmod(a, b);
      return Value::of(remainder != 0 && (remainder < 0) != (b < 0) ? remainder + b : remainder);
    }
    case Op::kFloatPow: {
      const double result = std::pow(a, b);
      return std::isnan(result) && !std::isnan(a) && !std::isnan(b) ? std::nullopt : std::optional(Value::of(result));
    }
    case Op::kFloatMin:
      return Value::of(b < a ? b : a);
    case Op::kFloatMax:
      return Value::of(b > a ? b : a);
    case Op::kFloatLt:
      return Value::of(a < b);
    case Op::kFloatLe:
      return Value::of(a <= b);
    case Op::kFloatEq:
      return Value::of(a == b);
    default:
      return std::nullopt;
  }
}

std::optional<Value> float_function(FloatFunction function, double a) {
  const auto in_domain = [](bool condition, double value) {
    return condition ? std::optional(Value::of(value)) : std::nullopt;
  };
  switch (function) {
    case FloatFunction::kNeg:
      return Value::of(-a);
    case FloatFunction::kAbs:
      return Value::of(std::abs(a));
    case FloatFunction::kSqrt:
      return in_domain(a >= 0, std::sqrt(a));
    case FloatFunction::kCos:
      return Value::of(std::cos(a));
    case FloatFunction::kCosh:
      return Value::of(std::cosh(a));
    case FloatFunction::kSin:
      return Value::of(std::sin(a));
    case FloatFunction::kSinh:
      return Value::of(std::sinh(a));
    case FloatFunction::kTan:
      return Value::of(std::tan(a));
    case FloatFunction::kTanh:
      return Value::of(std::tanh(a));
    case FloatFunction::kAsin:
      return in_domain(a >= -1 && a <= 1, std::asin(a));
    case FloatFunction::kAcos:
      return in_domain(a >= -1 && a <= 1, std::acos(a));
    case FloatFunction::kAtan:
      return Value::of(std::atan(a));
    case FloatFunction::kExp:
      return Value::of(std::exp(a));
    case FloatFunction::kLog:
      return in_domain(a > 0, std::log(a));
    case FloatFunction::kLog2:
      return in_domain(a > 0, std::log2(a));
  }
  return std::nullopt;
}

Value extremum(Op op, c10::ArrayRef<Value> args) {
  int64_t best = args[0].integer;
  for (const Value& arg : args.slice(1)) {
    best = op == Op::kMin ? std::min(best, arg.integer) : std::max(best, arg.integer);
  }
  return Value::of(best);
}

bool all(c10::ArrayRef<Value> args) {
  return std::all_of(args.begin(), args.end(), [](const Value& arg) { return arg.integer != 0; });
}

bool any(c10::ArrayRef<Value> args) {
  return std::any_of(args.begin(), args.end(), [](const Value& arg) { return arg.integer != 0; });
}

}  // namespace

std::optional<Value> compute(const Expr& shape, c10::ArrayRef<Value> args) {
  switch (shape.op) {
    case Op::kInt:
      return Value::of(shape.number);
    case Op::kBool:
      return Value::of(shape.number != 0);
    case Op::kFloat:
      return Value::of(shape.real);
    case Op::kSymbol:
      return std::nullopt;
    case Op::kSum:
    case Op::kProduct:
      return linear(shape, args);
    case Op::kMin:
    case Op::kMax:
      return extremum(shape.op, args);
    case Op::kFloor:
      return integer_of(std::floor(args[0].real));
    case Op::kCeil:
      return integer_of(std::ceil(args[0].real));
    case Op::kTrunc:
      return integer_of(std::trunc(args[0].real));
    case Op::kRound:
      return integer_of(std::nearbyint(args[0].real));
    case Op::kToFloat:
      return Value::of(static_cast<double>(args[0].integer));
    case Op::kTrueDiv:
      return args[1].integer == 0 ? std::nullopt
                                  : std::optional(Value::of(true_quotient(args[0].integer, args[1].integer)));
    case Op::kFloatFunction:
      return float_function(static_cast<FloatFunction>(shape.number), args[0].real);
    case Op::kLe:
      return Value::of(args[0].integer <= 0);
    case Op::kEq:
      return Value::of(args[0].integer == 0);
    case Op::kNe:
      return Value::of(args[0].integer != 0);
    case Op::kIsInteger:
      return Value::of(std::isfinite(args[0].real) && std::floor(args[0].real) == args[0].real);
    case Op::kAnd:
      return Value::of(all(args));
    case Op::kOr:
      return Value::of(any(args));
    case Op::kNot:
      return Value::of(args[0].integer == 0);
    case Op::kIte:
      return args[0].integer != 0 ? args[1] : args[2];
    default:
      return shape.args[0]->type == ValueType::kFloat ? floats(shape.op, args[0].real, args[1].real)
                                                      : integers(shape.op, args[0].integer, args[1].integer);
  }
}

namespace {

class Evaluation {
 public:
  explicit Evaluation(const std::function<std::optional<Value>(uint32_t)>& value_of) : value_of_(value_of) {}

  std::optional<Value> of(ExprPtr expr) {
    if (expr->op == Op::kSymbol) {
      return value_of_(static_cast<uint32_t>(expr->number));
    }
    if (expr->args.empty()) {
      return compute(*expr, {});
    }
    if (const auto found = done_.find(expr); found != done_.end()) {
      return found->second;
    }
    const std::optional<Value> value = expr->op == Op::kIte ? choice(expr) : operation(expr);
    done_.emplace(expr, value);
    return value;
  }

 private:
  std::optional<Value> choice(ExprPtr expr) {
    const std::optional<Value> condition = of(expr->args[0]);
    return condition ? of(expr->args[condition->integer != 0 ? 1 : 2]) : std::nullopt;
  }

  std::optional<Value> operation(ExprPtr expr) {
    c10::SmallVector<Value, 4> values;
    bool is_defined = true;
    for (const ExprPtr arg : expr->args) {
      const std::optional<Value> value = of(arg);
      // One argument may decide, whatever the others.
      const bool decides =
          value && ((expr->op == Op::kAnd && value->integer == 0) || (expr->op == Op::kOr && value->integer != 0));
      if (decides) {
        return value;
      }
      is_defined &= value.has_value();
      values.push_back(value.value_or(Value()));
    }
    return is_defined ? compute(*expr, values) : std::nullopt;
  }

  const std::function<std::optional<Value>(uint32_t)>& value_of_;
  ska::flat_hash_map<ExprPtr, std::optional<Value>> done_;
};

}  // namespace

std::optional<Value> evaluate(ExprPtr expr, const std::function<std::optional<Value>(uint32_t)>& value_of) {
  return Evaluation(value_of).of(expr);
}

}  // namespace torchfake
