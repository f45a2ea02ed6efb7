// The canonical form of symbolic expressions, and their pool.
#include <torchfake/symbolic/expr.h>

#include <c10/util/Exception.h>

#include <torchfake/symbolic/errors.h>

#include <algorithm>
#include <bit>
#include <numeric>

namespace torchfake {

namespace {

[[noreturn]] void refuse_overflow() {
  raise_dynamic_shapes("", "a symbolic integer does not fit into 64 bits.");
}

int64_t checked_add(int64_t a, int64_t b) {
  int64_t result = 0;
  if (__builtin_add_overflow(a, b, &result)) {
    refuse_overflow();
  }
  return result;
}

int64_t checked_mul(int64_t a, int64_t b) {
  int64_t result = 0;
  if (__builtin_mul_overflow(a, b, &result)) {
    refuse_overflow();
  }
  return result;
}

int64_t floor_of(int64_t a, int64_t b) {
  const int64_t quotient = a / b;
  return quotient - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
}

// The greatest common divisor, nonnegative; handles INT64_MIN, returning 1 if the divisor does not fit.
int64_t common_divisor(int64_t a, int64_t b) {
  uint64_t x = a < 0 ? 0 - static_cast<uint64_t>(a) : static_cast<uint64_t>(a);
  uint64_t y = b < 0 ? 0 - static_cast<uint64_t>(b) : static_cast<uint64_t>(b);
  const uint64_t divisor = std::gcd(x, y);
  return divisor > static_cast<uint64_t>(INT64_MAX) ? 1 : static_cast<int64_t>(divisor);
}

uint64_t mix(uint64_t hash, uint64_t word) {
  hash ^= word + 0x9E3779B97F4A7C15ull + (hash << 6) + (hash >> 2);
  return hash * 0xff51afd7ed558ccdull;
}

void require(ExprPtr a, ValueType type, const char* what) {
  TORCH_CHECK_TYPE(
      a->type == type,
      what,
      ": expected ",
      type == ValueType::kInt        ? "an integer"
          : type == ValueType::kBool ? "a boolean"
                                     : "a float",
      ", got an expression of another type");
}

using Terms = c10::SmallVector<std::pair<ExprPtr, int64_t>, 4>;

bool by_id(const std::pair<ExprPtr, int64_t>& a, const std::pair<ExprPtr, int64_t>& b) {
  return a.first->id < b.first->id;
}

// Sorts the terms, combines equal expressions, and drops zeros.
void merge(Terms& terms) {
  std::sort(terms.begin(), terms.end(), by_id);
  size_t kept = 0;
  for (size_t i = 0; i < terms.size(); ++i) {
    if (kept > 0 && terms[kept - 1].first == terms[i].first) {
      terms[kept - 1].second = checked_add(terms[kept - 1].second, terms[i].second);
    } else {
      if (kept > 0 && terms[kept - 1].second == 0) {
        --kept;
      }
      terms[kept++] = terms[i];
    }
  }
  if (kept > 0 && terms[kept - 1].second == 0) {
    --kept;
  }
  terms.resize(kept);
}

// The factors of `whole` divided by those of `part`, or nothing if not divisible.
std::optional<Terms> divide_factors(const Terms& whole, const Terms& part) {
  Terms quotient = whole;
  for (const auto& [atom, power] : part) {
    const auto found =
        std::find_if(quotient.begin(), quotient.end(), [&](const auto& factor) { return factor.first == atom; });
    if (found == quotient.end() || found->second < power) {
      return std::nullopt;
    }
    found->second -= power;
  }
  return quotient;
}

}  // namespace

Polynomial terms_of(ExprPtr expr) {
  Polynomial result;
  if (expr->op == Op::kInt) {
    result.constant = expr->number;
  } else if (expr->op == Op::kSum) {
    result.constant = expr->number;
    for (size_t i = 0; i < expr->args.size(); ++i) {
      result.terms.emplace_back(expr->args[i], expr->coefficients[i]);
    }
  } else {
    result.terms.emplace_back(expr, 1);
  }
  return result;
}

Terms factors_of(ExprPtr monomial) {
  Terms result;
  if (monomial->op == Op::kProduct) {
    for (size_t i = 0; i < monomial->args.size(); ++i) {
      result.emplace_back(monomial->args[i], monomial->coefficients[i]);
    }
  } else {
    result.emplace_back(monomial, 1);
  }
  return result;
}

// Constructs canonical polynomials for the pool.
class PolynomialBuilder {
 public:
  explicit PolynomialBuilder(ExprPool& pool) : pool_(pool) {}

  ExprPtr sum(Terms terms, int64_t constant) const {
    for (size_t i = 0; i < terms.size(); ++i) {
      const auto [monomial, coefficient] = terms[i];
      if (monomial->op != Op::kInt && monomial->op != Op::kSum) {
        continue;
      }
      const Polynomial inner = terms_of(monomial);
      terms[i].second = 0;
      constant = checked_add(constant, checked_mul(coefficient, inner.constant));
      for (const auto& [part, factor] : inner.terms) {
        terms.emplace_back(part, checked_mul(coefficient, factor));
      }
    }
    merge(terms);
    if (terms.empty()) {
      return pool_.integer(constant);
    }
    if (terms.size() == 1 && terms[0].second == 1 && constant == 0) {
      return terms[0].first;
    }
    Expr expr;
    expr.op = Op::kSum;
    expr.number = constant;
    for (const auto& [monomial, coefficient] : terms) {
      expr.args.push_back(monomial);
      expr.coefficients.push_back(coefficient);
    }
    return pool_.intern(std::move(expr));
  }

  ExprPtr monomial(Terms factors) const {
    merge(factors);
    if (factors.empty()) {
      return pool_.integer(1);
    }
    if (factors.size() == 1 && factors[0].second == 1) {
      return factors[0].first;
    }
    Expr expr;
    expr.op = Op::kProduct;
    for (const auto& [atom, power] : factors) {
      expr.args.push_back(atom);
      expr.coefficients.push_back(power);
    }
    return pool_.intern(std::move(expr));
  }

  ExprPtr product_of_monomials(ExprPtr a, ExprPtr b) const {
    Terms factors = factors_of(a);
    for (const auto& factor : factors_of(b)) {
      factors.push_back(factor);
    }
    return monomial(std::move(factors));
  }

  ExprPtr product(ExprPtr a, ExprPtr b) const {
    const Polynomial left = terms_of(a);
    const Polynomial right = terms_of(b);
    const size_t left_size = left.terms.size() + (left.constant != 0 ? 1 : 0);
    const size_t right_size = right.terms.size() + (right.constant != 0 ? 1 : 0);
    if (left_size > 1 && right_size > 1 && left_size * right_size > ExprPool::kMostTerms) {
      return product_of_monomials(a, b);  // not expanded
    }
    Terms terms;
    for (const auto& [monomial, coefficient] : left.terms) {
      for (const auto& [other, factor] : right.terms) {
        terms.emplace_back(product_of_monomials(monomial, other), checked_mul(coefficient, factor));
      }
      if (right.constant != 0) {
        terms.emplace_back(monomial, checked_mul(coefficient, right.constant));
      }
    }
    if (left.constant != 0) {
      for (const auto& [other, factor] : right.terms) {
        terms.emplace_back(other, checked_mul(left.constant, factor));
      }
    }
    return sum(std::move(terms), checked_mul(left.constant, right.constant));
  }

  // a op b + offset. Sizes are assumed to stay below 2**62, so a larger constant decides: a slice may end at INT64_MAX.
  ExprPtr comparison(Op op, ExprPtr a, ExprPtr b, int64_t offset) const {
    __extension__ using Wide = __int128;
    Polynomial left = terms_of(a);
    const Polynomial right = terms_of(b);
    const Wide constant = static_cast<Wide>(left.constant) - right.constant - offset;
    for (const auto& [monomial, coefficient] : right.terms) {
      left.terms.emplace_back(monomial, checked_mul(coefficient, -1));
    }
    constexpr int64_t kBeyond = int64_t{1} << 62;
    if (!left.terms.empty() && (constant >= kBeyond || constant <= -kBeyond)) {
      return pool_.boolean(op == Op::kLe ? constant < 0 : op == Op::kNe);
    }
    if (left.terms.empty()) {
      return pool_.boolean(op == Op::kLe ? constant <= 0 : op == Op::kEq ? constant == 0 : constant != 0);
    }
    return pool_.compare(op, sum(std::move(left.terms), static_cast<int64_t>(constant)));
  }

  struct Division {
    ExprPtr quotient;
    ExprPtr remainder;
  };

  // a = b * quotient + remainder, for a divisor with a single term: divisible terms go into the quotient.
  Division divide_by_term(ExprPtr a, ExprPtr monomial, int64_t coefficient) const {
    const Polynomial whole = terms_of(a);
    const Terms part = factors_of(monomial);
    Terms quotient;
    Terms rest;
    for (const auto& [term, factor] : whole.terms) {
      std::optional<Terms> factors =
          factor % coefficient == 0 && term->op != Op::kInt ? divide_factors(factors_of(term), part) : std::nullopt;
      if (factors && !(factor == INT64_MIN && coefficient == -1)) {
        quotient.emplace_back(this->monomial(std::move(*factors)), factor / coefficient);
      } else {
        rest.emplace_back(term, factor);
      }
    }
    return {sum(std::move(quotient), 0), sum(std::move(rest), whole.constant)};
  }

  // a / b if b divides a as a polynomial, otherwise null.
  ExprPtr divide_exactly(ExprPtr a, ExprPtr b) const {
    const Polynomial divisor = terms_of(b);
    const auto [lead, lead_coefficient] = leading(divisor);
    if (lead == nullptr) {
      return nullptr;
    }
    ExprPtr quotient = pool_.integer(0);
    ExprPtr rest = a;
    for (size_t step = 0; step < ExprPool::kMostTerms; ++step) {
      if (rest->is_int(0)) {
        return quotient;
      }
      const auto [term, coefficient] = leading(terms_of(rest));
      if (term == nullptr || coefficient % lead_coefficient != 0) {
        return nullptr;
      }
      std::optional<Terms> factors = divide_factors(factors_of(term), factors_of(lead));
      if (!factors) {
        return nullptr;
      }
      const ExprPtr part = sum({{monomial(std::move(*factors)), coefficient / lead_coefficient}}, 0);
      quotient = pool_.add(quotient, part);
      rest = pool_.sub(rest, pool_.mul(part, b));
    }
    return nullptr;
  }

  struct Cancelled {
    ExprPtr a;
    ExprPtr b;
    ExprPtr factor;  // the cancelled factor; null if there is none
  };

  // Divides both by the common factor of all their terms.
  Cancelled cancel(ExprPtr a, ExprPtr b) const {
    const Polynomial parts[2] = {terms_of(a), terms_of(b)};
    int64_t divisor = 0;
    std::optional<Terms> common;
    for (const Polynomial& part : parts) {
      for (const auto& [monomial, coefficient] : part.terms) {
        divisor = common_divisor(divisor, coefficient);
        common = common ? intersection(*common, factors_of(monomial)) : factors_of(monomial);
      }
      if (part.constant != 0) {
        divisor = common_divisor(divisor, part.constant);
        common = Terms();
      }
    }
    if (divisor == 0 || (divisor == 1 && (!common || common->empty()))) {
      return {a, b, nullptr};
    }
    const ExprPtr factor = monomial(common ? *common : Terms());
    return {
        quotient_of_terms(parts[0], factor, divisor),
        quotient_of_terms(parts[1], factor, divisor),
        sum({{factor, divisor}}, 0)};
  }

 private:
  static Terms intersection(const Terms& a, const Terms& b) {
    Terms result;
    for (const auto& [atom, power] : a) {
      for (const auto& [other, other_power] : b) {
        if (atom == other) {
          result.emplace_back(atom, std::min(power, other_power));
        }
      }
    }
    return result;
  }

  ExprPtr quotient_of_terms(const Polynomial& whole, ExprPtr factor, int64_t divisor) const {
    const Terms part = factor->op == Op::kInt ? Terms() : factors_of(factor);
    Terms terms;
    for (const auto& [term, coefficient] : whole.terms) {
      std::optional<Terms> rest = divide_factors(factors_of(term), part);
      TORCH_INTERNAL_ASSERT(rest, "a common factor does not divide a term");
      terms.emplace_back(monomial(*std::move(rest)), coefficient / divisor);
    }
    return sum(std::move(terms), whole.constant / divisor);
  }

  // The leading term, by degree and then by atoms: a monomial order, as polynomial division requires.
  static std::pair<ExprPtr, int64_t> leading(const Polynomial& polynomial) {
    std::pair<ExprPtr, int64_t> best{nullptr, 0};
    for (const auto& term : polynomial.terms) {
      if (best.first == nullptr || precedes(best.first, term.first)) {
        best = term;
      }
    }
    return best;
  }

  static bool precedes(ExprPtr a, ExprPtr b) {
    const Terms left = factors_of(a);
    const Terms right = factors_of(b);
    const auto degree = [](const Terms& factors) {
      return std::accumulate(
          factors.begin(), factors.end(), int64_t{0}, [](int64_t sum, const auto& f) { return sum + f.second; });
    };
    if (degree(left) != degree(right)) {
      return degree(left) < degree(right);
    }
    // Graded lexicographic: decided by the power of the first atom in which they differ.
    size_t i = 0;
    size_t j = 0;
    while (i < left.size() && j < right.size()) {
      if (left[i].first != right[j].first) {
        return left[i].first->id > right[j].first->id;
      }
      if (left[i].second != right[j].second) {
        return left[i].second < right[j].second;
      }
      ++i;
      ++j;
    }
    return false;
  }

  ExprPool& pool_;
};

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

const Symbol& ExprPool::symbol_info(uint32_t index) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return *symbols_.at(index);
}

size_t ExprPool::symbol_count() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return symbols_.size();
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

ExprPtr ExprPool::floordiv(ExprPtr a, ExprPtr b) {
  require(a, ValueType::kInt, "floor division");
  require(b, ValueType::kInt, "floor division");
  TORCH_CHECK_VALUE(!b->is_int(0), "floor division: division by zero");
  const PolynomialBuilder builder(*this);
  if (b->op != Op::kInt) {
    if (a->is_int(0) || a == b) {
      return integer(a == b ? 1 : 0);
    }
    const Polynomial divisor = terms_of(b);
    if (divisor.terms.size() == 1 && divisor.constant == 0) {
      const auto [monomial, coefficient] = divisor.terms[0];
      const auto [quotient, rest] = builder.divide_by_term(a, monomial, coefficient);
      if (!quotient->is_int(0)) {
        return add(quotient, floordiv(rest, b));
      }
    } else if (const ExprPtr quotient = builder.divide_exactly(a, b)) {
      return quotient;
    }
    const auto [less, divisor_left, factor] = builder.cancel(a, b);
    return factor != nullptr ? floordiv(less, divisor_left) : make(Op::kFloorDiv, ValueType::kInt, {a, b});
  }
  const int64_t divisor = b->number;
  if (a->op == Op::kInt || divisor == INT64_MIN) {
    return make(Op::kFloorDiv, ValueType::kInt, {a, b});
  }
  if (divisor == 1) {
    return a;
  }
  if (divisor < 0) {
    return floordiv(neg(a), integer(-divisor));
  }
  // Multiples of the divisor are moved out: (8*a + 9)//8 is a + 1 + 1//8.
  const Polynomial whole = terms_of(a);
  Terms quotient;
  Terms rest;
  int64_t common = divisor;
  for (const auto& [monomial, coefficient] : whole.terms) {
    if (coefficient / divisor != 0) {
      quotient.emplace_back(monomial, coefficient / divisor);
    }
    if (coefficient % divisor != 0) {
      rest.emplace_back(monomial, coefficient % divisor);
      common = common_divisor(common, coefficient % divisor);
    }
  }
  const int64_t whole_part = floor_of(whole.constant, divisor);
  const int64_t constant = whole.constant - whole_part * divisor;
  const ExprPtr outside = builder.sum(std::move(quotient), whole_part);
  if (rest.empty()) {
    return outside;
  }
  if (common > 1) {
    for (auto& term : rest) {
      term.second /= common;
    }
    return add(outside, floordiv(builder.sum(std::move(rest), floor_of(constant, common)), integer(divisor / common)));
  }
  if (rest[0].second < 0) {  // canonical: -floor((x + c - 1)/c) instead of floor(-x/c)
    const ExprPtr turned = neg(builder.sum(std::move(rest), constant));
    return sub(outside, floordiv(add_number(turned, divisor - 1), b));
  }
  const ExprPtr inner = rest.size() == 1 && rest[0].second == 1 ? rest[0].first : nullptr;
  if (inner != nullptr && inner->op == Op::kFloorDiv && inner->args[1]->op == Op::kInt && inner->args[1]->number > 0) {
    const int64_t first = inner->args[1]->number;
    return add(
        outside,
        floordiv(add_number(inner->args[0], checked_mul(constant, first)), integer(checked_mul(first, divisor))));
  }
  return add(outside, make(Op::kFloorDiv, ValueType::kInt, {builder.sum(std::move(rest), constant), b}));
}

ExprPtr ExprPool::ceildiv(ExprPtr a, ExprPtr b) {
  return neg(floordiv(neg(a), b));
}

ExprPtr ExprPool::mod(ExprPtr a, ExprPtr b) {
  require(a, ValueType::kInt, "remainder");
  require(b, ValueType::kInt, "remainder");
  TORCH_CHECK_VALUE(!b->is_int(0), "remainder: division by zero");
  const PolynomialBuilder builder(*this);
  if (b->op != Op::kInt) {
    if (a->is_int(0) || a == b) {
      return integer(0);
    }
    const Polynomial divisor = terms_of(b);
    if (divisor.terms.size() == 1 && divisor.constant == 0) {
      const auto [monomial, coefficient] = divisor.terms[0];
      const auto [quotient, rest] = builder.divide_by_term(a, monomial, coefficient);
      if (rest != a) {
        return mod(rest, b);
      }
    } else if (builder.divide_exactly(a, b) != nullptr) {
      return integer(0);
    }
    const auto [less, divisor_left, factor] = builder.cancel(a, b);
    // The common factor is moved out: (2*a) % (2*b) is 2*(a % b).
    return factor == nullptr ? make(Op::kMod, ValueType::kInt, {a, b}) : mul(factor, mod(less, divisor_left));
  }
  const int64_t divisor = b->number;
  if (a->op == Op::kInt || divisor == INT64_MIN) {
    return make(Op::kMod, ValueType::kInt, {a, b});
  }
  if (divisor < 0) {
    return neg(mod(neg(a), integer(-divisor)));
  }
  const Polynomial whole = terms_of(a);
  Terms rest;
  int64_t common = divisor;
  for (const auto& [monomial, coefficient] : whole.terms) {
    // x % (k*divisor) equals x modulo `divisor`.
    const bool nests =
        monomial->op == Op::kMod && monomial->args[1]->op == Op::kInt && monomial->args[1]->number % divisor == 0;
    if (nests) {
      return mod(add(sub(a, scale(monomial, coefficient)), scale(monomial->args[0], coefficient)), b);
    }
    const int64_t part = coefficient - floor_of(coefficient, divisor) * divisor;
    if (part != 0) {
      rest.emplace_back(monomial, part);
      common = common_divisor(common, part);
    }
  }
  const int64_t constant = whole.constant - floor_of(whole.constant, divisor) * divisor;
  if (rest.empty()) {
    return integer(constant);
  }
  if (common > 1) {
    for (auto& term : rest) {
      term.second /= common;
    }
    const ExprPtr less = builder.sum(std::move(rest), constant / common);
    return add_number(scale(mod(less, integer(divisor / common)), common), constant % common);
  }
  return make(Op::kMod, ValueType::kInt, {builder.sum(std::move(rest), constant), b});
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

// `difference` op 0.
ExprPtr ExprPool::compare(Op op, ExprPtr difference) {
  Polynomial polynomial = terms_of(difference);
  if (polynomial.terms.empty()) {
    return boolean(
        op == Op::kLe       ? polynomial.constant <= 0
            : op == Op::kEq ? polynomial.constant == 0
                            : polynomial.constant != 0);
  }
  int64_t divisor = 0;
  for (const auto& term : polynomial.terms) {
    divisor = common_divisor(divisor, term.second);
  }
  if (op != Op::kLe && polynomial.constant % divisor != 0) {
    return boolean(op == Op::kNe);  // a multiple plus a remainder
  }
  if (op != Op::kLe && polynomial.terms[0].second < 0) {
    divisor = -divisor;
  }
  for (auto& term : polynomial.terms) {
    term.second /= divisor;
  }
  // Rounded up: 2*a - 7 <= 0 is a - 3 <= 0.
  polynomial.constant = op != Op::kLe
      ? polynomial.constant / divisor
      : floor_of(polynomial.constant, divisor) + (polynomial.constant % divisor != 0 ? 1 : 0);
  return make(op, ValueType::kBool, {PolynomialBuilder(*this).sum(std::move(polynomial.terms), polynomial.constant)});
}

ExprPtr ExprPool::eq(ExprPtr a, ExprPtr b) {
  TORCH_CHECK_TYPE(a->type == b->type, "==: the two sides have different types");
  if (a->type == ValueType::kInt) {
    return PolynomialBuilder(*this).comparison(Op::kEq, a, b, 0);
  }
  if (a->type == ValueType::kFloat) {
    return make(Op::kFloatEq, ValueType::kBool, {a, b});
  }
  if (a->is_constant() || b->is_constant()) {
    const ExprPtr known = a->is_constant() ? a : b;
    const ExprPtr other = a->is_constant() ? b : a;
    return known->is_true() ? other : logical_not(other);
  }
  return logical_or(logical_and(a, b), logical_and(logical_not(a), logical_not(b)));
}

ExprPtr ExprPool::ne(ExprPtr a, ExprPtr b) {
  return logical_not(eq(a, b));
}

ExprPtr ExprPool::lt(ExprPtr a, ExprPtr b) {
  TORCH_CHECK_TYPE(a->type == b->type, "<: the two sides have different types");
  if (a->type == ValueType::kInt) {
    return PolynomialBuilder(*this).comparison(Op::kLe, a, b, -1);
  }
  require(a, ValueType::kFloat, "<");
  return make(Op::kFloatLt, ValueType::kBool, {a, b});
}

ExprPtr ExprPool::le(ExprPtr a, ExprPtr b) {
  TORCH_CHECK_TYPE(a->type == b->type, "<=: the two sides have different types");
  if (a->type == ValueType::kInt) {
    return PolynomialBuilder(*this).comparison(Op::kLe, a, b, 0);
  }
  require(a, ValueType::kFloat, "<=");
  return make(Op::kFloatLe, ValueType::kBool, {a, b});
}

ExprPtr ExprPool::connect(Op op, ExprPtr a, ExprPtr b) {
  require(a, ValueType::kBool, op_name(op));
  require(b, ValueType::kBool, op_name(op));
  const bool absorbing = op == Op::kOr;  // the value that decides regardless of the other arguments
  c10::SmallVector<ExprPtr, 4> all;
  for (const ExprPtr arg : {a, b}) {
    if (arg->op == Op::kBool) {
      if ((arg->number != 0) == absorbing) {
        return arg;
      }
    } else if (arg->op == op) {
      all.append(arg->args.begin(), arg->args.end());
    } else {
      all.push_back(arg);
    }
  }
  std::sort(all.begin(), all.end(), [](ExprPtr x, ExprPtr y) { return x->id < y->id; });
  all.erase(std::unique(all.begin(), all.end()), all.end());
  for (const ExprPtr arg : all) {
    if (arg->op != Op::kAnd && arg->op != Op::kOr && std::find(all.begin(), all.end(), logical_not(arg)) != all.end()) {
      return boolean(absorbing);
    }
  }
  if (all.empty()) {
    return boolean(!absorbing);
  }
  return all.size() == 1 ? all[0] : make(op, ValueType::kBool, all);
}

ExprPtr ExprPool::logical_and(ExprPtr a, ExprPtr b) {
  return connect(Op::kAnd, a, b);
}

ExprPtr ExprPool::logical_or(ExprPtr a, ExprPtr b) {
  return connect(Op::kOr, a, b);
}

ExprPtr ExprPool::logical_not(ExprPtr a) {
  require(a, ValueType::kBool, "not");
  switch (a->op) {
    case Op::kBool:
      return boolean(a->number == 0);
    case Op::kLe:
      return compare(Op::kLe, add_number(neg(a->args[0]), 1));
    case Op::kEq:
      return make(Op::kNe, ValueType::kBool, {a->args[0]});
    case Op::kNe:
      return make(Op::kEq, ValueType::kBool, {a->args[0]});
    case Op::kNot:
      return a->args[0];
    case Op::kAnd:
    case Op::kOr: {
      ExprPtr result = boolean(a->op == Op::kOr);
      for (const ExprPtr arg : a->args) {
        result = connect(a->op == Op::kAnd ? Op::kOr : Op::kAnd, result, logical_not(arg));
      }
      return result;
    }
    case Op::kIte:
      return ite(a->args[0], logical_not(a->args[1]), logical_not(a->args[2]));
    default:
      return make(Op::kNot, ValueType::kBool, {a});
  }
}

ExprPtr ExprPool::is_integer(ExprPtr a) {
  require(a, ValueType::kFloat, "is_integer");
  return a->op == Op::kToFloat ? boolean(true) : make(Op::kIsInteger, ValueType::kBool, {a});
}

ExprPtr ExprPool::ite(ExprPtr condition, ExprPtr then, ExprPtr otherwise) {
  require(condition, ValueType::kBool, "ite");
  TORCH_CHECK_TYPE(then->type == otherwise->type, "ite: the two branches have different types");
  if (condition->op == Op::kBool) {
    return condition->number != 0 ? then : otherwise;
  }
  return then == otherwise ? then : make(Op::kIte, then->type, {condition, then, otherwise});
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
