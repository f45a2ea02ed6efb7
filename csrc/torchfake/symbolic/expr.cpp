// The pool of symbolic expressions, and the canonical form of their arithmetic.
#include <torchfake/symbolic/expr.h>

#include <c10/util/Exception.h>

#include <torchfake/symbolic/polynomial.h>

#include <algorithm>
#include <bit>

namespace torchfake {

namespace {

uint64_t mix(uint64_t hash, uint64_t word) {
  hash ^= word + 0x9E3779B97F4A7C15ull + (hash << 6) + (hash >> 2);
  return hash * 0xff51afd7ed558ccdull;
}

}  // namespace

ExprPtr ExprPool::intern(Expr&& expr) {
  uint64_t hash = mix(static_cast<uint64_t>(expr.op) << 8 | static_cast<uint64_t>(expr.type), expr.number);
  hash = mix(hash, std::bit_cast<uint64_t>(expr.real));
  for (const ExprPtr arg : expr.args) {
    hash = mix(hash, arg->id);
  }
  for (const int64_t coefficient : expr.coefficients) {
    hash = mix(hash, static_cast<uint64_t>(coefficient));
  }
  expr.hash = hash;
  std::lock_guard<std::mutex> lock(mutex_);
  auto& bucket = by_hash_[hash];
  for (const ExprPtr other : bucket) {
    if (other->op == expr.op && other->type == expr.type && other->number == expr.number &&
        std::bit_cast<uint64_t>(other->real) == std::bit_cast<uint64_t>(expr.real) && other->args == expr.args &&
        other->coefficients == expr.coefficients) {
      return other;
    }
  }
  expr.id = static_cast<uint32_t>(exprs_.size());
  expr.is_atom = expr.op != Op::kSum && expr.op != Op::kProduct && expr.op != Op::kInt;
  if (expr.op == Op::kSymbol) {
    const Symbol& symbol = *symbols_[expr.number];
    expr.symbols.push_back(static_cast<uint32_t>(expr.number));
    expr.has_hint = symbol.hint.has_value();
    expr.hint = symbol.hint.value_or(Value());
  } else {
    c10::SmallVector<Value, 4> hints;
    bool has_hints = true;
    for (const ExprPtr arg : expr.args) {
      has_hints &= arg->has_hint;
      hints.push_back(arg->hint);
      expr.symbols.append(arg->symbols.begin(), arg->symbols.end());
    }
    std::sort(expr.symbols.begin(), expr.symbols.end());
    expr.symbols.erase(std::unique(expr.symbols.begin(), expr.symbols.end()), expr.symbols.end());
    if (const std::optional<Value> hint = has_hints ? compute(expr, hints) : std::nullopt) {
      expr.has_hint = true;
      expr.hint = *hint;
    }
  }
  exprs_.push_back(std::make_unique<Expr>(std::move(expr)));
  bucket.push_back(exprs_.back().get());
  return exprs_.back().get();
}

ExprPtr ExprPool::make(Op op, ValueType type, c10::ArrayRef<ExprPtr> args, int64_t number) {
  Expr expr;
  expr.op = op;
  expr.type = type;
  expr.number = number;
  expr.args.append(args.begin(), args.end());
  if (std::all_of(args.begin(), args.end(), [](ExprPtr arg) { return arg->is_constant(); })) {
    c10::SmallVector<Value, 4> values;
    for (const ExprPtr arg : args) {
      values.push_back(arg->hint);
    }
    if (const std::optional<Value> value = compute(expr, values)) {
      return constant(*value);
    }
  }
  return intern(std::move(expr));
}

ExprPtr ExprPool::integer(int64_t value) {
  Expr expr;
  expr.number = value;
  return intern(std::move(expr));
}

ExprPtr ExprPool::boolean(bool value) {
  Expr expr;
  expr.op = Op::kBool;
  expr.type = ValueType::kBool;
  expr.number = value ? 1 : 0;
  return intern(std::move(expr));
}

ExprPtr ExprPool::real(double value) {
  Expr expr;
  expr.op = Op::kFloat;
  expr.type = ValueType::kFloat;
  expr.real = value;
  return intern(std::move(expr));
}

ExprPtr ExprPool::constant(const Value& value) {
  return value.type == ValueType::kInt ? integer(value.integer)
      : value.type == ValueType::kBool ? boolean(value.integer != 0)
                                       : real(value.real);
}

ExprPtr ExprPool::new_symbol(Symbol symbol) {
  Expr expr;
  expr.op = Op::kSymbol;
  expr.type = symbol.type;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    expr.number = static_cast<int64_t>(symbols_.size());
    symbols_.push_back(std::make_unique<Symbol>(std::move(symbol)));
  }
  const auto index = static_cast<size_t>(expr.number);
  const ExprPtr made = intern(std::move(expr));
  std::lock_guard<std::mutex> lock(mutex_);
  symbol_exprs_.resize(std::max(symbol_exprs_.size(), index + 1));
  symbol_exprs_[index] = made;
  return made;
}

ExprPtr ExprPool::symbol(uint32_t index) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return symbol_exprs_.at(index);
}

ExprPtr ExprPool::add(ExprPtr a, ExprPtr b) {
  const ExprPtr terms[] = {a, b};
  return sum(terms);
}

ExprPtr ExprPool::sub(ExprPtr a, ExprPtr b) {
  return add(a, neg(b));
}

ExprPtr ExprPool::neg(ExprPtr a) {
  return scale(a, -1);
}

ExprPtr ExprPool::scale(ExprPtr a, int64_t factor) {
  require(a, ValueType::kInt, "product");
  Polynomial polynomial = terms_of(a);
  for (auto& term : polynomial.terms) {
    term.second = checked_mul(term.second, factor);
  }
  return PolynomialBuilder(*this).sum(std::move(polynomial.terms), checked_mul(polynomial.constant, factor));
}

ExprPtr ExprPool::add_number(ExprPtr a, int64_t number) {
  require(a, ValueType::kInt, "sum");
  Polynomial polynomial = terms_of(a);
  return PolynomialBuilder(*this).sum(std::move(polynomial.terms), checked_add(polynomial.constant, number));
}

ExprPtr ExprPool::sum(c10::ArrayRef<ExprPtr> terms) {
  Terms all;
  int64_t constant = 0;
  for (const ExprPtr term : terms) {
    require(term, ValueType::kInt, "sum");
    const Polynomial polynomial = terms_of(term);
    all.append(polynomial.terms.begin(), polynomial.terms.end());
    constant = checked_add(constant, polynomial.constant);
  }
  return PolynomialBuilder(*this).sum(std::move(all), constant);
}

ExprPtr ExprPool::mul(ExprPtr a, ExprPtr b) {
  require(a, ValueType::kInt, "product");
  require(b, ValueType::kInt, "product");
  return PolynomialBuilder(*this).product(a, b);
}

ExprPtr ExprPool::pow(ExprPtr base, ExprPtr exponent) {
  require(base, ValueType::kInt, "power");
  require(exponent, ValueType::kInt, "power");
  constexpr int64_t kMostFactors = 16;
  if (exponent->op == Op::kInt) {
    TORCH_CHECK_VALUE(exponent->number >= 0, "power: a negative exponent has no integer result");
    if (exponent->number <= kMostFactors || base->is_int(0) || base->is_int(1)) {
      ExprPtr result = integer(1);
      for (int64_t i = 0; i < std::min(exponent->number, kMostFactors); ++i) {
        result = mul(result, base);
      }
      return result;
    }
  }
  return make(Op::kPow, ValueType::kInt, {base, exponent});
}

ExprPtr ExprPool::extremum(Op op, ExprPtr a, ExprPtr b) {
  require(a, ValueType::kInt, op_name(op));
  require(b, ValueType::kInt, op_name(op));
  c10::SmallVector<ExprPtr, 4> all;
  for (const ExprPtr arg : {a, b}) {
    if (arg->op == op) {
      all.append(arg->args.begin(), arg->args.end());
    } else {
      all.push_back(arg);
    }
  }
  // Of two arguments that differ by a constant, only one is kept.
  c10::SmallVector<ExprPtr, 4> kept;
  for (const ExprPtr candidate : all) {
    bool is_covered = false;
    for (ExprPtr& other : kept) {
      const ExprPtr difference = sub(candidate, other);
      if (difference->op == Op::kInt) {
        const bool wins = op == Op::kMin ? difference->number < 0 : difference->number > 0;
        other = wins ? candidate : other;
        is_covered = true;
        break;
      }
    }
    if (!is_covered) {
      kept.push_back(candidate);
    }
  }
  if (kept.size() == 1) {
    return kept[0];
  }
  std::sort(kept.begin(), kept.end(), [](ExprPtr x, ExprPtr y) { return x->id < y->id; });
  return make(op, ValueType::kInt, kept);
}

ExprPtr ExprPool::min(ExprPtr a, ExprPtr b) {
  return extremum(Op::kMin, a, b);
}

ExprPtr ExprPool::max(ExprPtr a, ExprPtr b) {
  return extremum(Op::kMax, a, b);
}

ExprPtr ExprPool::bitwise(Op op, ExprPtr a, ExprPtr b) {
  require(a, ValueType::kInt, op_name(op));
  require(b, ValueType::kInt, op_name(op));
  return make(op, ValueType::kInt, {a, b});
}

ExprPtr ExprPool::to_int(Op op, ExprPtr a) {
  require(a, ValueType::kFloat, op_name(op));
  if (a->op == Op::kToFloat && a->args[0]->type == ValueType::kInt) {
    return a->args[0];
  }
  // floor(a/b) equals a//b only if the float quotient is exact enough, which is not guaranteed. Not simplified.
  return make(op, ValueType::kInt, {a});
}

ExprPtr ExprPool::to_float(ExprPtr a) {
  if (a->type == ValueType::kBool) {
    return ite(a, real(1), real(0));
  }
  require(a, ValueType::kInt, "float");
  return make(Op::kToFloat, ValueType::kFloat, {a});
}

ExprPtr ExprPool::truediv(ExprPtr a, ExprPtr b) {
  require(a, ValueType::kInt, "division");
  require(b, ValueType::kInt, "division");
  TORCH_CHECK_VALUE(!b->is_int(0), "division: division by zero");
  return make(Op::kTrueDiv, ValueType::kFloat, {a, b});
}

ExprPtr ExprPool::float_binary(Op op, ExprPtr a, ExprPtr b) {
  require(a, ValueType::kFloat, op_name(op));
  require(b, ValueType::kFloat, op_name(op));
  return make(op, ValueType::kFloat, {a, b});
}

ExprPtr ExprPool::float_function(FloatFunction function, ExprPtr a) {
  require(a, ValueType::kFloat, float_function_name(function));
  return make(Op::kFloatFunction, ValueType::kFloat, {a}, static_cast<int64_t>(function));
}

ExprPtr ExprPool::bool_to_int(ExprPtr a) {
  return ite(a, integer(1), integer(0));
}

ExprPtr ExprPool::rebuild(const Expr& shape, c10::ArrayRef<ExprPtr> args) {
  switch (shape.op) {
    case Op::kInt:
    case Op::kBool:
    case Op::kFloat:
      return constant(shape.hint);
    case Op::kSymbol:
      return symbol(static_cast<uint32_t>(shape.number));
    case Op::kSum: {
      ExprPtr result = integer(shape.number);
      for (size_t i = 0; i < args.size(); ++i) {
        result = add(result, scale(args[i], shape.coefficients[i]));
      }
      return result;
    }
    case Op::kProduct: {
      ExprPtr result = integer(1);
      for (size_t i = 0; i < args.size(); ++i) {
        for (int64_t power = 0; power < shape.coefficients[i]; ++power) {
          result = mul(result, args[i]);
        }
      }
      return result;
    }
    case Op::kFloorDiv:
      return floordiv(args[0], args[1]);
    case Op::kMod:
      return mod(args[0], args[1]);
    case Op::kMin:
    case Op::kMax: {
      ExprPtr result = args[0];
      for (const ExprPtr arg : args.slice(1)) {
        result = extremum(shape.op, result, arg);
      }
      return result;
    }
    case Op::kPow:
      return pow(args[0], args[1]);
    case Op::kFloor:
    case Op::kCeil:
    case Op::kTrunc:
    case Op::kRound:
      return to_int(shape.op, args[0]);
    case Op::kToFloat:
      return to_float(args[0]);
    case Op::kTrueDiv:
      return truediv(args[0], args[1]);
    case Op::kLe:
    case Op::kEq:
    case Op::kNe:
      return compare(shape.op, args[0]);
    case Op::kIsInteger:
      return is_integer(args[0]);
    case Op::kAnd:
    case Op::kOr: {
      ExprPtr result = boolean(shape.op == Op::kAnd);
      for (const ExprPtr arg : args) {
        result = connect(shape.op, result, arg);
      }
      return result;
    }
    case Op::kNot:
      return logical_not(args[0]);
    case Op::kIte:
      return ite(args[0], args[1], args[2]);
    default:
      return make(shape.op, shape.type, args, shape.number);
  }
}

namespace {

class Substitution {
 public:
  Substitution(ExprPool& pool, const std::function<ExprPtr(ExprPtr)>& replacement)
      : pool_(pool), replacement_(replacement) {}

  ExprPtr of(ExprPtr expr) {
    if (const auto found = done_.find(expr); found != done_.end()) {
      return found->second;
    }
    ExprPtr result = replacement_(expr);
    if (result == nullptr) {
      c10::SmallVector<ExprPtr, 4> args;
      bool changed = expr->is_constant();  // a constant may belong to another pool
      for (const ExprPtr arg : expr->args) {
        args.push_back(of(arg));
        changed |= args.back() != arg;
      }
      result = changed ? pool_.rebuild(*expr, args) : expr;
    }
    done_.emplace(expr, result);
    return result;
  }

 private:
  ExprPool& pool_;
  const std::function<ExprPtr(ExprPtr)>& replacement_;
  ska::flat_hash_map<ExprPtr, ExprPtr> done_;
};

}  // namespace

ExprPtr ExprPool::substitute(ExprPtr expr, const std::function<ExprPtr(ExprPtr)>& replacement) {
  return Substitution(*this, replacement).of(expr);
}

}  // namespace torchfake
