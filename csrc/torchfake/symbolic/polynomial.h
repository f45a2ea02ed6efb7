// Polynomials over integer expressions, of which the canonical form of sums, products and comparisons is made.
#pragma once

#include <torchfake/symbolic/expr.h>

namespace torchfake {

// Throw if the result does not fit into 64 bits.
int64_t checked_add(int64_t a, int64_t b);
int64_t checked_mul(int64_t a, int64_t b);

// The quotient, rounded down.
int64_t floor_of(int64_t a, int64_t b);

// The greatest common divisor, nonnegative; handles INT64_MIN, returning 1 if the divisor does not fit.
int64_t common_divisor(int64_t a, int64_t b);

// Throws a TypeError that begins with `what` if an expression is of another type.
void require(ExprPtr a, ValueType type, const char* what);

using Terms = c10::SmallVector<std::pair<ExprPtr, int64_t>, 4>;

// Constructs canonical polynomials for the pool.
class PolynomialBuilder {
 public:
  explicit PolynomialBuilder(ExprPool& pool) : pool_(pool) {}

  ExprPtr sum(Terms terms, int64_t constant) const;
  ExprPtr monomial(Terms factors) const;

  ExprPtr product_of_monomials(ExprPtr a, ExprPtr b) const;
  ExprPtr product(ExprPtr a, ExprPtr b) const;

  // a op b + offset. Sizes are assumed to stay below 2**62, so a larger constant decides: a slice may end at INT64_MAX.
  ExprPtr comparison(Op op, ExprPtr a, ExprPtr b, int64_t offset) const;

  struct Division {
    ExprPtr quotient;
    ExprPtr remainder;
  };

  // a = b * quotient + remainder, for a divisor with a single term: divisible terms go into the quotient.
  Division divide_by_term(ExprPtr a, ExprPtr monomial, int64_t coefficient) const;

  // a / b if b divides a as a polynomial, otherwise null.
  ExprPtr divide_exactly(ExprPtr a, ExprPtr b) const;

  struct Cancelled {
    ExprPtr a;
    ExprPtr b;
    ExprPtr factor;  // the cancelled factor; null if there is none
  };

  // Divides both by the common factor of all their terms.
  Cancelled cancel(ExprPtr a, ExprPtr b) const;

 private:
  static Terms intersection(const Terms& a, const Terms& b);
  ExprPtr quotient_of_terms(const Polynomial& whole, ExprPtr factor, int64_t divisor) const;

  // The leading term, by degree and then by atoms: a monomial order, as polynomial division requires.
  static std::pair<ExprPtr, int64_t> leading(const Polynomial& polynomial);
  static bool precedes(ExprPtr a, ExprPtr b);

  ExprPool& pool_;
};

}  // namespace torchfake
