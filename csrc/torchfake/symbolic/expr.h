// Symbolic expressions over integers, floats and booleans: hash-consed, in canonical form.
#pragma once

#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>
#include <c10/util/flat_hash_map.h>

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace torchfake {

// Note [Canonical expressions]
// Integers are polynomials: a sum of monomials with integer coefficients, fully expanded, where a monomial is a product
// of powers of atoms. An atom is a symbol, or an operation that polynomials cannot express: a floor division, a
// remainder, a minimum. Integer comparisons are `polynomial <= 0`, `== 0` or `!= 0`, divided by the greatest common
// divisor of the coefficients. Negations are pushed to the leaves. Equal expressions of one pool are the same object,
// so that comparing them is a pointer comparison:
//
//     (batch + 1)*seq - seq   and   seq*batch   are the same object, and   2*batch <= 7   is   batch <= 3
//
// Floats are not associative and are kept as written. A product whose expansion would have more than kMostTerms terms
// is not expanded.
// Rejected: factored products, as in sympy, which would turn equality into a search.
enum class Op : uint8_t {
  kInt,
  kBool,
  kFloat,
  kSymbol,
  // Integers.
  kSum,  // the sum of coefficients[i] * args[i], plus number
  kProduct,  // the product of args[i] ** coefficients[i]
  kFloorDiv,
  kMod,  // Python's: has the sign of the divisor
  kMin,
  kMax,
  kPow,  // with a nonnegative exponent that is not a small constant
  kBitAnd,
  kBitOr,
  kBitXor,
  kShiftLeft,
  kShiftRight,
  kFloor,  // of a float, like the three below
  kCeil,
  kTrunc,
  kRound,
  // Floats.
  kToFloat,  // from an integer
  kTrueDiv,  // between integers
  kFloatAdd,
  kFloatSub,
  kFloatMul,
  kFloatDiv,
  kFloatMod,
  kFloatPow,
  kFloatMin,
  kFloatMax,
  kFloatFunction,  // `number` is a FloatFunction
  // Booleans.
  kLe,  // args[0] <= 0
  kEq,  // args[0] == 0
  kNe,
  kFloatLt,
  kFloatLe,
  kFloatEq,
  kIsInteger,  // for a float
  kAnd,
  kOr,
  kNot,  // for operations without a negated form: float comparisons, symbols
  // Any type.
  kIte,
};
const char* op_name(Op op);

enum class FloatFunction : uint8_t {
  kNeg,
  kAbs,
  kSqrt,
  kCos,
  kCosh,
  kSin,
  kSinh,
  kTan,
  kTanh,
  kAsin,
  kAcos,
  kAtan,
  kExp,
  kLog,
  kLog2,
};
const char* float_function_name(FloatFunction function);

enum class ValueType : uint8_t { kInt, kBool, kFloat };

struct Value {
  ValueType type = ValueType::kInt;
  int64_t integer = 0;  // also for booleans
  double real = 0;

  static Value of(int64_t value) {
    return {ValueType::kInt, value, 0};
  }
  static Value of(bool value) {
    return {ValueType::kBool, value ? 1 : 0, 0};
  }
  static Value of(double value) {
    return {ValueType::kFloat, 0, value};
  }
  bool operator==(const Value& other) const = default;
};

class ExprPool;

// Immutable; lives as long as its pool.
struct Expr {
  Op op = Op::kInt;
  ValueType type = ValueType::kInt;
  bool has_hint = false;
  bool is_atom = false;  // in integer polynomials
  uint32_t id = 0;  // in order of creation
  uint64_t hash = 0;
  int64_t number = 0;  // kInt, kBool; a sum's constant; a symbol's index; a FloatFunction
  double real = 0;  // kFloat
  c10::SmallVector<const Expr*, 2> args;
  c10::SmallVector<int64_t, 2> coefficients;  // kSum, kProduct
  Value hint;  // the value at the hints of the symbols, if all have hints
  // The indices of its symbols, in ascending order.
  c10::SmallVector<uint32_t, 2> symbols;

  bool is_constant() const {
    return op == Op::kInt || op == Op::kBool || op == Op::kFloat;
  }
  bool is_int(int64_t value) const {
    return op == Op::kInt && number == value;
  }
  bool is_true() const {
    return op == Op::kBool && number != 0;
  }
};
using ExprPtr = const Expr*;

struct Symbol {
  std::string name;
  ValueType type = ValueType::kInt;
  std::optional<Value> hint;
};

// The value of an operation on values; nothing for a division by zero or an integer overflow.
std::optional<Value> compute(const Expr& shape, c10::ArrayRef<Value> args);

// Creates and owns expressions. Thread-safe. Every function throws DynamicShapesError if an integer does not fit into
// 64 bits, and c10::ValueError for a division by the constant zero. Divisors that are not constant are assumed to be
// nonzero, since the real operation would have failed otherwise.
class ExprPool {
 public:
  ExprPool() = default;
  ExprPool(const ExprPool&) = delete;
  ExprPool& operator=(const ExprPool&) = delete;
  ExprPool(ExprPool&&) = delete;
  ExprPool& operator=(ExprPool&&) = delete;
  ~ExprPool() = default;

  ExprPtr integer(int64_t value);
  ExprPtr boolean(bool value);
  ExprPtr real(double value);
  ExprPtr constant(const Value& value);
  // A new symbol, even if the name exists.
  ExprPtr new_symbol(Symbol symbol);
  ExprPtr symbol(uint32_t index) const;

  // Integers.
  ExprPtr add(ExprPtr a, ExprPtr b);
  ExprPtr sub(ExprPtr a, ExprPtr b);
  ExprPtr neg(ExprPtr a);
  ExprPtr mul(ExprPtr a, ExprPtr b);
  ExprPtr scale(ExprPtr a, int64_t factor);
  ExprPtr add_number(ExprPtr a, int64_t number);
  ExprPtr sum(c10::ArrayRef<ExprPtr> terms);
  ExprPtr pow(ExprPtr base, ExprPtr exponent);
  ExprPtr floordiv(ExprPtr a, ExprPtr b);
  ExprPtr mod(ExprPtr a, ExprPtr b);
  ExprPtr min(ExprPtr a, ExprPtr b);
  ExprPtr max(ExprPtr a, ExprPtr b);
  ExprPtr bitwise(Op op, ExprPtr a, ExprPtr b);  // kBitAnd to kShiftRight
  ExprPtr to_int(Op op, ExprPtr a);  // kFloor to kRound, for a float

  // Floats.
  ExprPtr to_float(ExprPtr a);  // from an integer or a boolean
  ExprPtr truediv(ExprPtr a, ExprPtr b);  // between integers
  ExprPtr float_binary(Op op, ExprPtr a, ExprPtr b);
  ExprPtr float_function(FloatFunction function, ExprPtr a);

  // Booleans. Comparisons take two integers, two floats or two booleans.
  ExprPtr eq(ExprPtr a, ExprPtr b);
  ExprPtr ne(ExprPtr a, ExprPtr b);
  ExprPtr lt(ExprPtr a, ExprPtr b);
  ExprPtr le(ExprPtr a, ExprPtr b);
  ExprPtr logical_and(ExprPtr a, ExprPtr b);
  ExprPtr logical_or(ExprPtr a, ExprPtr b);
  ExprPtr logical_not(ExprPtr a);
  ExprPtr is_integer(ExprPtr a);
  ExprPtr ite(ExprPtr condition, ExprPtr then, ExprPtr otherwise);
  ExprPtr bool_to_int(ExprPtr a);

  // The same operation on other arguments, which belong to this pool, although `shape` may belong to another one.
  // Comparisons with zero take a single argument.
  ExprPtr rebuild(const Expr& shape, c10::ArrayRef<ExprPtr> args);

  // Returns `expr`, from any pool, after replacing every subexpression for which `replacement` returns an expression of
  // this pool. Symbols that are not replaced must belong to this pool.
  ExprPtr substitute(ExprPtr expr, const std::function<ExprPtr(ExprPtr)>& replacement);

  static constexpr size_t kMostTerms = 64;

 private:
  friend class PolynomialBuilder;
  ExprPtr intern(Expr&& expr);
  ExprPtr compare(Op op, ExprPtr difference);
  ExprPtr connect(Op op, ExprPtr a, ExprPtr b);
  ExprPtr extremum(Op op, ExprPtr a, ExprPtr b);
  ExprPtr make(Op op, ValueType type, c10::ArrayRef<ExprPtr> args, int64_t number = 0);

  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Expr>> exprs_;
  std::vector<std::unique_ptr<Symbol>> symbols_;
  std::vector<ExprPtr> symbol_exprs_;
  ska::flat_hash_map<uint64_t, c10::SmallVector<ExprPtr, 1>> by_hash_;
};

// The value of an expression at these values of its symbols; nothing if it is undefined, or if `value_of` returns
// nothing for a symbol that is needed.
std::optional<Value> evaluate(ExprPtr expr, const std::function<std::optional<Value>(uint32_t)>& value_of);

// `batch*seq + 3`, with symbols printed by `name`.
std::string to_string(ExprPtr expr, const std::function<std::string(uint32_t)>& name);

// The parts of an integer expression: the coefficient and monomial of each term, and the constant.
struct Polynomial {
  c10::SmallVector<std::pair<ExprPtr, int64_t>, 4> terms;
  int64_t constant = 0;
};
Polynomial terms_of(ExprPtr expr);

// The atoms of a monomial and their powers.
c10::SmallVector<std::pair<ExprPtr, int64_t>, 4> factors_of(ExprPtr monomial);

}  // namespace torchfake
