// The canonical form of symbolic divisions and remainders.
#include <c10/util/Exception.h>

#include <torchfake/symbolic/polynomial.h>

namespace torchfake {

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

}  // namespace torchfake
