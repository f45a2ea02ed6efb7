// Placeholders for the symbols of a call, so that its outcome can be kept and used for other symbols.
#pragma once

#include <torchfake/symbolic/sym_node.h>

namespace torchfake {

// Note [Placeholders]
// The rule of an operator works on placeholders: the symbols among the arguments, numbered by first use. What a rule can
// find out about a placeholder is what the key of the call says (that its values are of 2 and more, say), and what the
// environment of the call decides when it is asked. So the outcome of a call is its key and the decisions, and holds for
// every call with equal ones, whatever its symbols are called and whatever else their environment knows:
//
//     x.view(-1, 64) of (batch, seq, 64)   sizes (s*t, 64), no decision
//     a + b of (n) and (m)                 sizes (s), where the answer to `s == t` is yes
//
// Rejected: recording expressions over the symbols of the call itself. What had been replaced by the facts of one
// environment would have gone into the answers of another.

// Who says what placeholders stand for. One for each call that is being worked out; lives on the stack.
class Placeholders {
 public:
  struct Decision {
    Asking asking;
    ExprPtr expr;  // of placeholders
    bool answer;
  };

  // Placeholder i stands for symbols[i] of `env`.
  Placeholders(ShapeEnvPtr env, c10::ArrayRef<ExprPtr> symbols);
  ~Placeholders();
  Placeholders(const Placeholders&) = delete;
  Placeholders& operator=(const Placeholders&) = delete;
  Placeholders(Placeholders&&) = delete;
  Placeholders& operator=(Placeholders&&) = delete;

  // Where placeholders live. They are the same from call to call.
  const ShapeEnvPtr& env() const {
    return own_;
  }
  c10::ArrayRef<ExprPtr> list() const {
    return placeholders_;
  }
  // With placeholders in the place of symbols, and the other way round.
  ExprPtr abstract(ExprPtr expr) const;
  ExprPtr concrete(ExprPtr expr) const;
  std::optional<Value> hint(ExprPtr expr) const;

  // What was asked of the environment, in order.
  const std::vector<Decision>& decisions() const {
    return decisions_;
  }

 private:
  friend class PlaceholderEnv;
  bool decide(ExprPtr expr, Asking asking);

  const ShapeEnvPtr outer_;
  const c10::ArrayRef<ExprPtr> symbols_;
  ShapeEnvPtr own_;
  c10::SmallVector<ExprPtr, 8> placeholders_;
  std::vector<Decision> decisions_;
  Placeholders* const around_;
};

// How much a key says of the values of a symbol: bounds below that every rule profits from.
enum class SymbolClass : uint8_t { kAny, kNatural, kAtLeastTwo };
SymbolClass class_of(ShapeEnv& env, ExprPtr symbol);

// `expr` with to[i] in the place of the symbol from[i], in the pool of `to`. Throws DynamicShapesError for a symbol that is
// not among `from`.
ExprPtr replace_symbols(ExprPool& pool, ExprPtr expr, c10::ArrayRef<ExprPtr> from, c10::ArrayRef<ExprPtr> to);

}  // namespace torchfake
