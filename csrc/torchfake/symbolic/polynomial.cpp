// Polynomials over integer expressions.
#include <torchfake/symbolic/polynomial.h>

#include <c10/util/Exception.h>

#include <torchfake/symbolic/errors.h>

#include <algorithm>
#include <numeric>

namespace torchfake {

namespace {

[[noreturn]] void refuse_overflow() {
  raise_dynamic_shapes("", "a symbolic integer does not fit into 64 bits.");
}

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

int64_t common_divisor(int64_t a, int64_t b) {
  uint64_t x = a < 0 ? 0 - static_cast<uint64_t>(a) : static_cast<uint64_t>(a);
  uint64_t y = b < 0 ? 0 - static_cast<uint64_t>(b) : static_cast<uint64_t>(b);
  const uint64_t divisor = std::gcd(x, y);
  return divisor > static_cast<uint64_t>(INT64_MAX) ? 1 : static_cast<int64_t>(divisor);
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

ExprPtr PolynomialBuilder::sum(Terms terms, int64_t constant) const {
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

ExprPtr PolynomialBuilder::monomial(Terms factors) const {
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

ExprPtr PolynomialBuilder::product_of_monomials(ExprPtr a, ExprPtr b) const {
  Terms factors = factors_of(a);
  for (const auto& factor : factors_of(b)) {
    factors.push_back(factor);
  }
  return monomial(std::move(factors));
}

ExprPtr PolynomialBuilder::product(ExprPtr a, ExprPtr b) const {
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

ExprPtr PolynomialBuilder::comparison(Op op, ExprPtr a, ExprPtr b, int64_t offset) const {
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

PolynomialBuilder::Division PolynomialBuilder::divide_by_term(ExprPtr a, ExprPtr monomial, int64_t coefficient) const {
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

ExprPtr PolynomialBuilder::divide_exactly(ExprPtr a, ExprPtr b) const {
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

PolynomialBuilder::Cancelled PolynomialBuilder::cancel(ExprPtr a, ExprPtr b) const {
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

Terms PolynomialBuilder::intersection(const Terms& a, const Terms& b) {
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

ExprPtr PolynomialBuilder::quotient_of_terms(const Polynomial& whole, ExprPtr factor, int64_t divisor) const {
  const Terms part = factor->op == Op::kInt ? Terms() : factors_of(factor);
  Terms terms;
  for (const auto& [term, coefficient] : whole.terms) {
    std::optional<Terms> rest = divide_factors(factors_of(term), part);
    TORCH_INTERNAL_ASSERT(rest, "a common factor does not divide a term");
    terms.emplace_back(monomial(*std::move(rest)), coefficient / divisor);
  }
  return sum(std::move(terms), whole.constant / divisor);
}

std::pair<ExprPtr, int64_t> PolynomialBuilder::leading(const Polynomial& polynomial) {
  std::pair<ExprPtr, int64_t> best{nullptr, 0};
  for (const auto& term : polynomial.terms) {
    if (best.first == nullptr || precedes(best.first, term.first)) {
      best = term;
    }
  }
  return best;
}

bool PolynomialBuilder::precedes(ExprPtr a, ExprPtr b) {
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

}  // namespace torchfake
