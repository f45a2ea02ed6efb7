// Facts about symbols (ranges, equalities, divisibility) and their consequences.
#include <torchfake/symbolic/shape_env.h>

#include <c10/util/Exception.h>

#include <algorithm>

namespace torchfake {

namespace {

__extension__ using Wide = __int128;

int64_t clamped(Wide value) {
  return value <= Range::kNoLow ? Range::kNoLow
      : value >= Range::kNoHigh ? Range::kNoHigh
                                : static_cast<int64_t>(value);
}

bool is_bound(int64_t end) {
  return end != Range::kNoLow && end != Range::kNoHigh;
}

int64_t add_ends(int64_t a, int64_t b) {
  return !is_bound(a) ? a : !is_bound(b) ? b : clamped(static_cast<Wide>(a) + b);
}

// Zero times an unbounded end is zero, because the end stands for finite integers.
int64_t multiply_ends(int64_t a, int64_t b) {
  if (a == 0 || b == 0) {
    return 0;
  }
  if (!is_bound(a) || !is_bound(b)) {
    return (a < 0) != (b < 0) ? Range::kNoLow : Range::kNoHigh;
  }
  return clamped(static_cast<Wide>(a) * b);
}

int64_t floor_ends(int64_t a, int64_t b) {
  if (!is_bound(b)) {
    return a == 0      ? 0
        : !is_bound(a) ? ((a < 0) != (b < 0) ? Range::kNoLow : Range::kNoHigh)
                       : ((a < 0) != (b < 0) ? -1 : 0);
  }
  if (!is_bound(a)) {
    return (a < 0) != (b < 0) ? Range::kNoLow : Range::kNoHigh;
  }
  const Wide quotient = static_cast<Wide>(a) / b;
  return clamped(quotient - (static_cast<Wide>(a) % b != 0 && (a < 0) != (b < 0) ? 1 : 0));
}

Range hull(std::initializer_list<int64_t> ends) {
  return {std::min(ends), std::max(ends)};
}

Range multiply(const Range& a, const Range& b) {
  return hull(
      {multiply_ends(a.low, b.low),
       multiply_ends(a.low, b.high),
       multiply_ends(a.high, b.low),
       multiply_ends(a.high, b.high)});
}

Range intersect(const Range& a, const Range& b) {
  return {std::max(a.low, b.low), std::min(a.high, b.high)};
}

Range floor_divide(const Range& a, const Range& b) {
  if (b.low <= 0 && b.high >= 0) {
    return {};
  }
  return hull(
      {floor_ends(a.low, b.low), floor_ends(a.low, b.high), floor_ends(a.high, b.low), floor_ends(a.high, b.high)});
}

Range remainder(const Range& a, const Range& b) {
  if (b.low <= 0) {
    return b.high < 0 ? Range{add_ends(b.low, 1), 0} : Range{};
  }
  if (a.low >= 0 && is_bound(a.high) && a.high < b.low) {
    return a;
  }
  const int64_t most = is_bound(b.high) ? b.high - 1 : Range::kNoHigh;
  return {0, a.low >= 0 ? std::min(most, a.high) : most};
}

Range power(const Range& base, int64_t exponent) {
  Range result{1, 1};
  for (int64_t i = 0; i < exponent; ++i) {
    result = multiply(result, base);
  }
  return exponent % 2 == 0 ? intersect(result, {0, Range::kNoHigh}) : result;
}

}  // namespace

void ShapeEnv::forget_memos() {
  range_memo_.clear();
  simplify_memo_.clear();
  generation_.fetch_add(1, std::memory_order_acq_rel);
}

ExprPtr ShapeEnv::simplify(ExprPtr expr) {
  if (expr->symbols.empty() || !replaces_.load(std::memory_order_acquire)) {
    return expr;
  }
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  if (const auto found = simplify_memo_.find(expr); found != simplify_memo_.end()) {
    return found->second;
  }
  const ExprPtr result = pool_.substitute(expr, [&](ExprPtr part) -> ExprPtr {
    const auto found = replacements_.find(part);
    return found == replacements_.end() ? nullptr : found->second;
  });
  simplify_memo_.emplace(expr, result);
  return result;
}

ExprPtr ShapeEnv::for_decision(ExprPtr expr) {
  ExprPtr result = simplify(expr);
  if (!multiples_.empty()) {
    result = pool_.substitute(result, [&](ExprPtr part) -> ExprPtr {
      const auto found = multiples_.find(part);
      return found == multiples_.end() ? nullptr : found->second;
    });
  }
  return result;
}

Range ShapeEnv::range(ExprPtr expr) {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  return range_of(simplify(expr));
}

Range ShapeEnv::range_of_sum(ExprPtr expr) {
  const Polynomial polynomial = terms_of(expr);
  Range result{0, 0};
  for (const auto& [monomial, coefficient] : polynomial.terms) {
    const Range term = multiply(range_of(monomial), {coefficient, coefficient});
    result = {add_ends(result.low, term.low), add_ends(result.high, term.high)};
  }
  if (!upper_bounds_.empty()) {
    const ExprPtr base = pool_.add_number(expr, -polynomial.constant);
    if (const auto found = upper_bounds_.find(base); found != upper_bounds_.end()) {
      result.high = std::min(result.high, found->second);
    }
    if (const auto found = upper_bounds_.find(pool_.neg(base)); found != upper_bounds_.end()) {
      result.low = std::max(result.low, -found->second);
    }
  }
  return {add_ends(result.low, polynomial.constant), add_ends(result.high, polynomial.constant)};
}

Range ShapeEnv::range_of(ExprPtr expr) {
  if (expr->op == Op::kInt) {
    return {expr->number, expr->number};
  }
  if (expr->op == Op::kSymbol) {
    return symbols_[expr->number].range;
  }
  if (const auto found = range_memo_.find(expr); found != range_memo_.end()) {
    return found->second;
  }
  Range result;
  switch (expr->op) {
    case Op::kSum:
      result = range_of_sum(expr);
      break;
    case Op::kProduct:
      result = {1, 1};
      for (size_t i = 0; i < expr->args.size(); ++i) {
        result = multiply(result, power(range_of(expr->args[i]), expr->coefficients[i]));
      }
      break;
    case Op::kFloorDiv:
      result = floor_divide(range_of(expr->args[0]), range_of(expr->args[1]));
      break;
    case Op::kMod:
      result = remainder(range_of(expr->args[0]), range_of(expr->args[1]));
      break;
    case Op::kMin:
    case Op::kMax: {
      result = range_of(expr->args[0]);
      for (const ExprPtr arg : c10::ArrayRef<ExprPtr>(expr->args).slice(1)) {
        const Range other = range_of(arg);
        result = expr->op == Op::kMin ? Range{std::min(result.low, other.low), std::min(result.high, other.high)}
                                      : Range{std::max(result.low, other.low), std::max(result.high, other.high)};
      }
      break;
    }
    case Op::kIte:
      if (expr->type == ValueType::kInt) {
        const Range then = range_of(expr->args[1]);
        const Range otherwise = range_of(expr->args[2]);
        result = {std::min(then.low, otherwise.low), std::max(then.high, otherwise.high)};
      }
      break;
    default:
      break;
  }
  if (expr->type == ValueType::kInt && !upper_bounds_.empty() && expr->op != Op::kSum) {
    if (const auto found = upper_bounds_.find(expr); found != upper_bounds_.end()) {
      result.high = std::min(result.high, found->second);
    }
    if (const auto found = upper_bounds_.find(pool_.neg(expr)); found != upper_bounds_.end()) {
      result.low = std::max(result.low, -found->second);
    }
  }
  range_memo_.emplace(expr, result);
  return result;
}

// Whether a polynomial is at most zero because, after measuring every symbol from its lower bound, no coefficient is
// positive: batch - batch*seq with batch and seq of at least 2.
bool ShapeEnv::is_never_positive(ExprPtr polynomial) {
  const Polynomial whole = terms_of(polynomial);
  if (whole.terms.size() < 2 || whole.terms.size() > 16) {
    return false;
  }
  try {
    ExprPtr shifted = pool_.integer(whole.constant);
    for (const auto& [monomial, coefficient] : whole.terms) {
      ExprPtr product = pool_.integer(coefficient);
      for (const auto& [atom, power] : factors_of(monomial)) {
        const int64_t low = range_of(atom).low;
        if (!is_bound(low) || power > 8) {
          return false;
        }
        for (int64_t i = 0; i < power; ++i) {
          product = pool_.mul(product, pool_.add_number(atom, low));
        }
      }
      shifted = pool_.add(shifted, product);
    }
    const Polynomial result = terms_of(shifted);
    const bool is_plain = std::all_of(result.terms.begin(), result.terms.end(), [](const auto& term) {
      return term.first->op != Op::kSum && term.second <= 0;
    });
    return result.constant <= 0 && is_plain;
  } catch (const c10::Error&) {
    return false;  // overflow: nothing can be concluded
  }
}

std::optional<bool> ShapeEnv::known_comparison(ExprPtr expr) {
  const ExprPtr polynomial = expr->args[0];
  const Range range = range_of(polynomial);
  if (expr->op == Op::kLe) {
    if (range.high <= 0 || range.low > 0) {
      return range.high <= 0;
    }
    if (is_never_positive(polynomial)) {
      return true;
    }
    return is_never_positive(pool_.add_number(pool_.neg(polynomial), 1)) ? std::optional(false) : std::nullopt;
  }
  const bool differs = range.low > 0 || range.high < 0 || is_never_positive(pool_.add_number(polynomial, 1)) ||
      is_never_positive(pool_.add_number(pool_.neg(polynomial), 1));
  if (differs) {
    return expr->op == Op::kNe;
  }
  return range.low == 0 && range.high == 0 ? std::optional(expr->op == Op::kEq) : std::nullopt;
}

namespace {

// Writes remainders p % k as p - k*(p//k): s is 2*(s//2) + s % 2.
ExprPtr without_remainders(ExprPool& pool, ExprPtr expr) {
  constexpr int64_t kMostDivisor = int64_t{1} << 20;  // far from overflow
  return pool.substitute(expr, [&](ExprPtr part) -> ExprPtr {
    if (part->op != Op::kMod || part->args[1]->op != Op::kInt) {
      return nullptr;
    }
    const ExprPtr divisor = part->args[1];
    if (divisor->number < 2 || divisor->number > kMostDivisor) {
      return nullptr;
    }
    return pool.sub(part->args[0], pool.mul(divisor, pool.floordiv(part->args[0], divisor)));
  });
}

}  // namespace

std::optional<bool> ShapeEnv::known(ExprPtr expr) {
  if (expr->op == Op::kBool) {
    return expr->number != 0;
  }
  if (facts_.count(expr) != 0) {
    return true;
  }
  switch (expr->op) {
    case Op::kLe:
    case Op::kEq:
    case Op::kNe:
      if (facts_.count(pool_.logical_not(expr)) != 0) {
        return false;
      }
      if (const std::optional<bool> answer = known_comparison(expr)) {
        return answer;
      }
      if (const ExprPtr divided = without_remainders(pool_, expr); divided != expr) {
        return known(divided);
      }
      return std::nullopt;
    case Op::kAnd:
    case Op::kOr: {
      const bool absorbing = expr->op == Op::kOr;
      bool all_known = true;
      for (const ExprPtr arg : expr->args) {
        const std::optional<bool> part = known(arg);
        if (part == std::optional(absorbing)) {
          return absorbing;
        }
        all_known &= part.has_value();
      }
      return all_known ? std::optional(!absorbing) : std::nullopt;
    }
    case Op::kNot: {
      const std::optional<bool> opposite = known(expr->args[0]);
      return opposite ? std::optional(!*opposite) : std::nullopt;
    }
    default:
      return facts_.count(pool_.logical_not(expr)) != 0 ? std::optional(false) : std::nullopt;
  }
}

void ShapeEnv::learn(ExprPtr fact) {
  const ExprPtr expr = for_decision(fact);
  if (expr->op == Op::kBool) {
    return;
  }
  facts_.insert(expr);
  switch (expr->op) {
    case Op::kAnd:
      for (const ExprPtr part : expr->args) {
        learn(part);
      }
      break;
    case Op::kLe:
      learn_bound(expr->args[0]);
      break;
    case Op::kEq:
      learn_equality(expr->args[0]);
      break;
    case Op::kNe: {
      // Excluding a value at the end of a range shrinks the range.
      const Polynomial polynomial = terms_of(expr->args[0]);
      if (polynomial.terms.size() == 1 && polynomial.terms[0].first->op == Op::kSymbol &&
          polynomial.terms[0].second == 1 && polynomial.constant != Range::kNoLow) {
        Range& range = symbols_[polynomial.terms[0].first->number].range;
        range.low += range.low == -polynomial.constant && is_bound(range.low) ? 1 : 0;
        range.high -= range.high == -polynomial.constant && is_bound(range.high) ? 1 : 0;
      }
      break;
    }
    default:
      break;
  }
  forget_memos();
}

// `polynomial` <= 0.
void ShapeEnv::learn_bound(ExprPtr polynomial) {
  const Polynomial parts = terms_of(polynomial);
  if (parts.terms.empty() || parts.constant == Range::kNoLow) {
    return;
  }
  if (parts.terms.size() == 1 && parts.terms[0].first->op == Op::kSymbol) {
    Range& range = symbols_[parts.terms[0].first->number].range;
    const int64_t end = floor_ends(-parts.constant, parts.terms[0].second);
    const bool is_exact = parts.constant % parts.terms[0].second == 0;
    if (parts.terms[0].second > 0) {
      range.high = std::min(range.high, end);
    } else {
      range.low = std::max(range.low, end + (is_exact ? 0 : 1));
    }
    return;
  }
  const ExprPtr base = pool_.add_number(polynomial, -parts.constant);
  const auto [found, is_new] = upper_bounds_.emplace(base, -parts.constant);
  if (!is_new) {
    found->second = std::min(found->second, -parts.constant);
  }
}

// x % 8 == 0: x is 8 times a new symbol.
bool ShapeEnv::learn_multiple(ExprPtr atom) {
  if (atom->op != Op::kMod || atom->args[0]->op != Op::kSymbol || atom->args[1]->op != Op::kInt) {
    return false;
  }
  const ExprPtr symbol = atom->args[0];
  const int64_t divisor = atom->args[1]->number;
  const SymbolInfo whole = symbols_[symbol->number];
  SymbolInfo info;
  info.name = "(" + whole.name + "//" + std::to_string(divisor) + ")";
  info.is_internal = true;
  info.is_backed = whole.is_backed;
  info.range = floor_divide(whole.range, {divisor, divisor});
  if (is_bound(whole.range.low) && whole.range.low % divisor != 0) {
    info.range.low += 1;
  }
  const Value hint = symbol->has_hint ? Value::of(symbol->hint.integer / divisor) : Value();
  const ExprPtr quotient = add_symbol(hint, symbol->has_hint, std::move(info));
  const ExprPtr multiple = pool_.scale(quotient, divisor);
  for (auto& [from, to] : multiples_) {
    to = pool_.substitute(to, [&](ExprPtr part) { return part == symbol ? multiple : nullptr; });
  }
  multiples_.emplace(symbol, multiple);
  return true;
}

// `polynomial` == 0: solved for a symbol, or for an atom that forms a term by itself.
void ShapeEnv::learn_equality(ExprPtr polynomial) {
  const Polynomial parts = terms_of(polynomial);
  ExprPtr best = nullptr;
  int64_t sign = 0;
  for (const auto& [monomial, coefficient] : parts.terms) {
    if ((coefficient != 1 && coefficient != -1) || monomial->op == Op::kProduct) {
      continue;
    }
    // The atom must not occur in the rest, not even inside other atoms.
    const ExprPtr rest = pool_.sub(polynomial, pool_.scale(monomial, coefficient));
    bool occurs = false;
    pool_.substitute(rest, [&](ExprPtr part) -> ExprPtr {
      occurs |= part == monomial;
      return nullptr;
    });
    if (occurs) {
      continue;
    }
    // Symbols without a hint are eliminated first, then later ones: the first symbols of a program are those of its
    // inputs.
    const auto rank = [&](ExprPtr atom) {
      const bool is_symbol = atom->op == Op::kSymbol;
      return std::make_tuple(is_symbol, is_symbol && !symbols_[atom->number].is_backed, atom->id);
    };
    if (best == nullptr || rank(best) < rank(monomial)) {
      best = monomial;
      sign = coefficient;
    }
  }
  if (best == nullptr) {
    return;
  }
  if (parts.terms.size() == 1 && parts.constant == 0 && learn_multiple(best)) {
    return;
  }
  const ExprPtr rest = pool_.sub(polynomial, pool_.scale(best, sign));
  const ExprPtr value = sign == 1 ? pool_.neg(rest) : rest;
  if (best->op == Op::kSymbol && value->op == Op::kSymbol) {
    // The remaining symbol gets the intersection of both ranges.
    Range& kept = symbols_[value->number].range;
    kept = intersect(kept, symbols_[best->number].range);
  } else if (best->op == Op::kSymbol) {
    const Range range = symbols_[best->number].range;
    if (value->op != Op::kInt && range.low != Range::kNoLow) {
      learn_bound(pool_.sub(pool_.integer(range.low), value));
    }
    if (value->op != Op::kInt && range.high != Range::kNoHigh) {
      learn_bound(pool_.add_number(value, -range.high));
    }
  }
  add_replacement(best, value);
}

void ShapeEnv::add_replacement(ExprPtr from, ExprPtr to) {
  const bool is_internal =
      std::any_of(to->symbols.begin(), to->symbols.end(), [&](uint32_t index) { return symbols_[index].is_internal; });
  const bool from_internal = std::any_of(
      from->symbols.begin(), from->symbols.end(), [&](uint32_t index) { return symbols_[index].is_internal; });
  auto& table = is_internal || from_internal ? multiples_ : replacements_;
  const auto replace = [&](ExprPtr expr) {
    return pool_.substitute(expr, [&](ExprPtr part) { return part == from ? to : nullptr; });
  };
  for (auto* each : {&replacements_, &multiples_}) {
    if (each == &replacements_ && &table != &replacements_) {
      continue;  // user-visible expressions must not contain internal symbols
    }
    for (auto& entry : *each) {
      entry.second = replace(entry.second);
    }
  }
  table[from] = to;
  replaces_.store(!replacements_.empty(), std::memory_order_release);
  forget_memos();
  std::set<ExprPtr> facts;
  facts.swap(facts_);
  for (const ExprPtr fact : facts) {
    facts_.insert(for_decision(fact));
  }
  ska::flat_hash_map<ExprPtr, int64_t> bounds;
  bounds.swap(upper_bounds_);
  for (const auto& [base, bound] : bounds) {
    const ExprPtr polynomial = for_decision(base);
    if (bound != Range::kNoLow) {
      learn_bound(pool_.add_number(polynomial, -bound));
    }
  }
}

}  // namespace torchfake
