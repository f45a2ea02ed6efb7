// The canonical form of symbolic comparisons and of logic.
#include <torchfake/symbolic/polynomial.h>

#include <algorithm>

namespace torchfake {

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

}  // namespace torchfake
