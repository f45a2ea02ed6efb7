// The key of a call with symbolic sizes: symbols are numbered by first use. See Note [Symbolic calls].
#pragma once

#include <torchfake/cache/cache_key.h>
#include <torchfake/symbolic/placeholder_env.h>

namespace torchfake {

// The symbolic numbers among the arguments of a call. Valid as long as the arguments are unchanged.
class SymbolicKey {
 public:
  // Throws DynamicShapesError for a symbol of PyTorch's own, and for symbols of two environments.
  SymbolicKey(const Call& call, const ModeState& mode);

  // Null if every symbol among the arguments has become a number.
  const ShapeEnvPtr& env() const {
    return env_;
  }
  // Why there is no key, or Bypass::kNone.
  Bypass bypass() const {
    return bypass_;
  }
  CacheKey& words() {
    return key_;
  }
  // The symbols in order of first use.
  c10::ArrayRef<ExprPtr> symbols() const {
    return symbols_;
  }
  // The distinct symbolic numbers in order of first use, with their nodes.
  struct Number {
    ExprPtr expr;
    c10::SymNodeImpl* node;
  };
  c10::ArrayRef<Number> numbers() const {
    return numbers_;
  }

 private:
  void add_tensor(const Call& call, const TensorArg& tensor);
  void add_aliases(const Call& call);
  bool add_argument(const c10::IValue& value, bool type_only);
  bool add_number_or_text(const c10::IValue& value, bool type_only);
  void add_word(uint64_t word) {
    key_.add_int(static_cast<int64_t>(word));
  }
  void add_size(const c10::SymInt& value);
  void add_node(c10::SymNodeImpl* node);
  void add_expr(ExprPtr expr);
  void add_symbol(ExprPtr symbol);

  CacheKey key_;
  Bypass bypass_ = Bypass::kNone;
  ShapeEnvPtr env_;
  c10::SmallVector<ExprPtr, 8> symbols_;
  c10::SmallVector<Number, 16> numbers_;
};

}  // namespace torchfake
