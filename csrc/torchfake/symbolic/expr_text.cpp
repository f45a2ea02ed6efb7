// Expressions as text: `batch*seq + 3`.
#include <torchfake/symbolic/expr.h>

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace torchfake {

const char* op_name(Op op) {
  switch (op) {
    case Op::kInt:
      return "int";
    case Op::kBool:
      return "bool";
    case Op::kFloat:
      return "float";
    case Op::kSymbol:
      return "symbol";
    case Op::kSum:
      return "sum";
    case Op::kProduct:
      return "product";
    case Op::kFloorDiv:
      return "floordiv";
    case Op::kMod:
      return "mod";
    case Op::kMin:
      return "min";
    case Op::kMax:
      return "max";
    case Op::kPow:
      return "pow";
    case Op::kBitAnd:
      return "bit_and";
    case Op::kBitOr:
      return "bit_or";
    case Op::kBitXor:
      return "bit_xor";
    case Op::kShiftLeft:
      return "shift_left";
    case Op::kShiftRight:
      return "shift_right";
    case Op::kFloor:
      return "floor";
    case Op::kCeil:
      return "ceil";
    case Op::kTrunc:
      return "trunc";
    case Op::kRound:
      return "round";
    case Op::kToFloat:
      return "to_float";
    case Op::kTrueDiv:
      return "truediv";
    case Op::kFloatAdd:
      return "float_add";
    case Op::kFloatSub:
      return "float_sub";
    case Op::kFloatMul:
      return "float_mul";
    case Op::kFloatDiv:
      return "float_div";
    case Op::kFloatMod:
      return "float_mod";
    case Op::kFloatPow:
      return "float_pow";
    case Op::kFloatMin:
      return "float_min";
    case Op::kFloatMax:
      return "float_max";
    case Op::kFloatFunction:
      return "float_function";
    case Op::kLe:
      return "le";
    case Op::kEq:
      return "eq";
    case Op::kNe:
      return "ne";
    case Op::kFloatLt:
      return "float_lt";
    case Op::kFloatLe:
      return "float_le";
    case Op::kFloatEq:
      return "float_eq";
    case Op::kIsInteger:
      return "is_integer";
    case Op::kAnd:
      return "and";
    case Op::kOr:
      return "or";
    case Op::kNot:
      return "not";
    case Op::kIte:
      return "ite";
  }
  return "unknown";
}

const char* float_function_name(FloatFunction function) {
  static constexpr const char* kNames[] = {
      "neg", "abs", "sqrt", "cos", "cosh", "sin", "sinh", "tan", "tanh", "asin", "acos", "atan", "exp", "log", "log2"};
  return kNames[static_cast<size_t>(function)];
}

namespace {

enum Precedence : uint8_t {
  kLoosest,
  kOrLevel,
  kAndLevel,
  kNotLevel,
  kComparison,
  kAddition,
  kMultiplication,
  kPower,
  kAtom
};

class Printer {
 public:
  explicit Printer(const std::function<std::string(uint32_t)>& name) : name_(name) {}

  std::string print(ExprPtr expr, Precedence around) const {
    const auto [text, level] = print(expr);
    return level < around ? "(" + text + ")" : text;
  }

 private:
  using Printed = std::pair<std::string, Precedence>;

  Printed print(ExprPtr expr) const {
    switch (expr->op) {
      case Op::kInt:
        return {std::to_string(expr->number), expr->number < 0 ? kAddition : kAtom};
      case Op::kBool:
        return {expr->number != 0 ? "True" : "False", kAtom};
      case Op::kFloat:
        return {number(expr->real), expr->real < 0 ? kAddition : kAtom};
      case Op::kSymbol:
        return {name_(static_cast<uint32_t>(expr->number)), kAtom};
      case Op::kSum:
        return sum(terms_of(expr));
      case Op::kProduct:
        return product(expr);
      case Op::kFloorDiv:
        return binary(expr, "//", kMultiplication);
      case Op::kMod:
      case Op::kFloatMod:
        return binary(expr, " % ", kMultiplication);
      case Op::kTrueDiv:
      case Op::kFloatDiv:
        return binary(expr, "/", kMultiplication);
      case Op::kFloatMul:
        return binary(expr, "*", kMultiplication);
      case Op::kFloatAdd:
        return binary(expr, " + ", kAddition);
      case Op::kFloatSub:
        return binary(expr, " - ", kAddition);
      case Op::kPow:
      case Op::kFloatPow:
        return {print(expr->args[0], kAtom) + "**" + print(expr->args[1], kAtom), kPower};
      case Op::kFloatLt:
        return binary(expr, " < ", kComparison);
      case Op::kFloatLe:
        return binary(expr, " <= ", kComparison);
      case Op::kFloatEq:
        return binary(expr, " == ", kComparison);
      case Op::kToFloat:
        return call("float", expr);
      case Op::kFloatMin:
        return call("min", expr);
      case Op::kFloatMax:
        return call("max", expr);
      case Op::kFloatFunction:
        return call(float_function_name(static_cast<FloatFunction>(expr->number)), expr);
      case Op::kLe:
      case Op::kEq:
      case Op::kNe:
        return {comparison(expr), kComparison};
      case Op::kAnd:
        return joined(expr, " and ", kAndLevel);
      case Op::kOr:
        return joined(expr, " or ", kOrLevel);
      case Op::kNot:
        return {"not " + print(expr->args[0], kNotLevel), kNotLevel};
      case Op::kIte:
        return {
            print(expr->args[1], kOrLevel) + " if " + print(expr->args[0], kOrLevel) + " else " +
                print(expr->args[2], kOrLevel),
            kLoosest};
      default:
        return call(op_name(expr->op), expr);
    }
  }

  static Precedence next(Precedence level) {
    return static_cast<Precedence>(level + 1);
  }

  static std::string number(double value) {
    for (const int digits : {15, 16, 17}) {
      char text[40];
      std::snprintf(text, sizeof(text), "%.*g", digits, value);
      if (std::strtod(text, nullptr) == value || digits == 17) {
        std::string result(text);
        const bool is_whole = result.find_first_not_of("-0123456789") == std::string::npos;
        return is_whole ? result + ".0" : result;
      }
    }
    return {};
  }

  Printed binary(ExprPtr expr, const char* sign, Precedence level) const {
    return {print(expr->args[0], level) + sign + print(expr->args[1], next(level)), level};
  }

  Printed call(const char* function, ExprPtr expr) const {
    c10::SmallVector<std::string, 4> parts;
    for (ExprPtr arg : expr->args) {
      parts.push_back(print(arg, kLoosest));
    }
    if (expr->op == Op::kMin || expr->op == Op::kMax) {
      std::sort(parts.begin(), parts.end());  // independent of the order of creation
    }
    std::string text = std::string(function) + "(";
    for (size_t i = 0; i < parts.size(); ++i) {
      text += (i == 0 ? "" : ", ") + parts[i];
    }
    return {text + ")", kAtom};
  }

  Printed joined(ExprPtr expr, const char* word, Precedence level) const {
    c10::SmallVector<std::string, 4> parts;
    for (ExprPtr arg : expr->args) {
      parts.push_back(print(arg, next(level)));
    }
    std::sort(parts.begin(), parts.end());
    std::string text;
    for (const std::string& part : parts) {
      text += (text.empty() ? "" : word) + part;
    }
    return {text, level};
  }

  Printed product(ExprPtr expr) const {
    c10::SmallVector<std::string, 4> parts;
    for (const auto& [atom, power] : factors_of(expr)) {
      parts.push_back(power == 1 ? print(atom, kPower) : print(atom, kAtom) + "**" + std::to_string(power));
    }
    std::sort(parts.begin(), parts.end());
    std::string text;
    for (const std::string& part : parts) {
      text += (text.empty() ? "" : "*") + part;
    }
    return {text, kMultiplication};
  }

  // Terms by decreasing degree, positive before negative ones, the constant last (first if it is the only positive
  // term).
  Printed sum(const Polynomial& polynomial) const {
    struct Term {
      bool is_negative;
      int64_t degree;
      std::string text;
    };
    std::vector<Term> terms;
    for (const auto& [monomial, coefficient] : polynomial.terms) {
      int64_t degree = 0;
      for (const auto& [atom, power] : factors_of(monomial)) {
        degree += power;
      }
      const uint64_t size = coefficient < 0 ? 0 - static_cast<uint64_t>(coefficient) : coefficient;
      // `2*(a//b)` and `-(a//b)`: the product or the negative is not the dividend.
      const bool is_division = monomial->op == Op::kFloorDiv || monomial->op == Op::kMod;
      const Precedence around = is_division && coefficient != 1 ? kPower : kMultiplication;
      std::string text = (size == 1 ? "" : std::to_string(size) + "*") + print(monomial, around);
      terms.push_back({coefficient < 0, -degree, std::move(text)});
    }
    std::sort(terms.begin(), terms.end(), [](const Term& a, const Term& b) {
      return std::tie(a.is_negative, a.degree, a.text) < std::tie(b.is_negative, b.degree, b.text);
    });
    const int64_t constant = polynomial.constant;
    if (constant != 0) {
      const uint64_t size = constant < 0 ? 0 - static_cast<uint64_t>(constant) : constant;
      const bool leads = constant > 0 && (terms.empty() || terms.front().is_negative);
      terms.insert(leads ? terms.begin() : terms.end(), Term{constant < 0, 0, std::to_string(size)});
    }
    if (terms.empty()) {
      return {"0", kAtom};
    }
    std::string text;
    for (const Term& term : terms) {
      text += text.empty() ? (term.is_negative ? "-" : "") : (term.is_negative ? " - " : " + ");
      text += term.text;
    }
    const bool is_single = terms.size() == 1 && !terms.front().is_negative;
    return {text, is_single ? kMultiplication : kAddition};
  }

  // Negative terms move to the other side: `seq < batch`, `batch % 8 == 0`, `batch >= 2`.
  std::string comparison(ExprPtr expr) const {
    Polynomial left;
    Polynomial right;
    Polynomial all = terms_of(expr->args[0]);
    for (const auto& [monomial, coefficient] : all.terms) {
      if (coefficient > 0 || coefficient == INT64_MIN) {
        left.terms.emplace_back(monomial, coefficient);
      } else {
        right.terms.emplace_back(monomial, -coefficient);
      }
    }
    const char* sign = expr->op == Op::kLe ? " <= " : expr->op == Op::kEq ? " == " : " != ";
    if (left.terms.empty()) {
      right.constant = 0;
      left.constant = all.constant;
      const char* turned = expr->op == Op::kLe ? " >= " : sign;
      return sum(right).first + turned + sum(left).first;
    }
    if (right.terms.empty()) {
      if (all.constant == INT64_MIN) {
        left.constant = all.constant;
      } else {
        right.constant = -all.constant;
      }
    } else if (expr->op == Op::kLe && all.constant == 1) {
      sign = " < ";
    } else {
      (all.constant > 0 || all.constant == INT64_MIN ? left.constant : right.constant) =
          all.constant > 0 || all.constant == INT64_MIN ? all.constant : -all.constant;
    }
    return sum(left).first + sign + sum(right).first;
  }

  const std::function<std::string(uint32_t)>& name_;
};

}  // namespace

std::string to_string(ExprPtr expr, const std::function<std::string(uint32_t)>& name) {
  return Printer(name).print(expr, kLoosest);
}

}  // namespace torchfake
