// Placeholders for the symbols of a call, so that its outcome can be cached and reused for other symbols.
#pragma once

#include <torchfake/symbolic/sym_node.h>

namespace torchfake {

// Note [Placeholders]
// The rule of an operator works on placeholders: the symbols among the arguments, numbered by first use. All that a
// rule can learn about a placeholder is what the key of the call contains (for example that its value is at least 2)
// and the decisions that the environment of the call makes on request. So the outcome of a call depends only on its key
// and these decisions, and is valid for every call with the same ones, whatever its symbols are called and whatever
// else their environment knows:
//
//     x.view(-1, 64) of (batch, seq, 64)   sizes (s*t, 64), no decision
//     a + b of (n) and (m)                 sizes (s), where the answer to `s == t` is yes
//
// Rejected: recording expressions over the symbols of the call itself. Replacements derived from the facts of one
// environment would have entered the outcomes of another.

// Resolves placeholders to the symbols of a call. One per call being computed; lives on the stack.
class Placeholders {
 public:
  struct Decision {
    Asking asking;
    ExprPtr expr;  // over placeholders
    bool answer;
  };

  // Placeholder i stands for symbols[i] of `env`.
  Placeholders(ShapeEnvPtr env, c10::ArrayRef<ExprPtr> symbols);
  ~Placeholders();
  Placeholders(const Placeholders&) = delete;
  Placeholders& operator=(const Placeholders&) = delete;
  Placeholders(Placeholders&&) = delete;
  Placeholders& operator=(Placeholders&&) = delete;

  // The environment of the placeholders, which are the same for every call.
  const ShapeEnvPtr& env() const {
    return own_;
  }
  c10::ArrayRef<ExprPtr> list() const {
    return placeholders_;
  }
  // Whether every symbol of an expression has a placeholder.
  bool cover(ExprPtr expr) const;
  // Replaces symbols by placeholders, and the reverse.
  ExprPtr abstract(ExprPtr expr) const;
  ExprPtr concrete(ExprPtr expr) const;
  std::optional<Value> hint(ExprPtr expr) const;

  // The decisions that were requested, in order. They are made by the hints, and become guards only when they are
  // recorded, so that a rule that does not apply leaves none behind.
  const std::vector<Decision>& decisions() const {
    return decisions_;
  }
  // Whether one of them, after the first `count`, fixes a size at a single value, because the rule has read it as a
  // number.
  bool fix_numbers_after(size_t count) const;
  // Removes and returns all but the first `count`.
  std::vector<Decision> take_decisions_after(size_t count);
  void add_decisions(const std::vector<Decision>& decisions);
  // Requests the decisions from the environment of the call, which records guards there.
  void record_decisions() const;

 private:
  friend class PlaceholderEnv;
  const Decision* find(ExprPtr expr, Asking asking) const;
  bool decide(ExprPtr expr, Asking asking);
  std::optional<bool> peek(ExprPtr expr, Asking asking) const;

  const ShapeEnvPtr outer_;
  const c10::ArrayRef<ExprPtr> symbols_;
  ShapeEnvPtr own_;
  c10::SmallVector<ExprPtr, 8> placeholders_;
  std::vector<Decision> decisions_;
  Placeholders* const around_;
};

// What a key says about the value of a symbol: lower bounds that are useful to every rule.
enum class SymbolClass : uint8_t { kAny, kNatural, kAtLeastTwo };
SymbolClass class_of(ShapeEnv& env, ExprPtr symbol);

// `expr` with each symbol from[i] replaced by to[i], in the pool of `to`. Throws DynamicShapesError for a symbol that
// is not in `from`.
ExprPtr replace_symbols(ExprPool& pool, ExprPtr expr, c10::ArrayRef<ExprPtr> from, c10::ArrayRef<ExprPtr> to);

}  // namespace torchfake
