// The symbols of a program's sizes, the facts known about them, and the guards recorded.
#pragma once

#include <torchfake/symbolic/expr.h>

#include <limits>
#include <map>
#include <set>

namespace torchfake {

// The possible values of an integer. The ends of int64_t mean unbounded.
struct Range {
  static constexpr int64_t kNoLow = std::numeric_limits<int64_t>::min();
  static constexpr int64_t kNoHigh = std::numeric_limits<int64_t>::max();
  int64_t low = kNoLow;
  int64_t high = kNoHigh;

  bool operator==(const Range& other) const = default;
};

// How a decision is requested, which determines what happens if the known facts do not settle it.
enum class Asking : uint8_t {
  kGuard,  // decided by the hint, recorded as a guard; an error without a hint
  kOrFalse,  // the same, but false without a hint
  kOrTrue,
  kSizeOblivious,  // the same, but a size without a hint is assumed to be neither 0 nor 1
  kStatically,  // false: only asks whether it is known to be true
  kExpected,  // recorded as a guard, or, without a hint, as a runtime assertion
};

struct Guard {
  ExprPtr expr;  // a condition that holds
  std::string op;  // the operator that requested it, or empty
};

struct SymbolInfo {
  std::string name;
  std::string source;
  Range range;
  bool is_backed = true;  // has a hint
  bool is_internal = false;  // represents a quotient that is known to be exact
  bool is_size = false;  // for symbols without a hint: used as a size
};

// Thread-safe. Expressions belong to the environment's pool and live as long as it does.
class ShapeEnv {
 public:
  struct Options {
    bool duck_shape = true;  // unnamed sizes that are equal share a symbol
    bool specialize_zero_one = true;  // sizes of 0 and 1 are numbers, and symbols are neither
  };
  ShapeEnv();
  explicit ShapeEnv(Options options);
  virtual ~ShapeEnv();
  ShapeEnv(const ShapeEnv&) = delete;
  ShapeEnv& operator=(const ShapeEnv&) = delete;
  ShapeEnv(ShapeEnv&&) = delete;
  ShapeEnv& operator=(ShapeEnv&&) = delete;

  // Whether any environment exists in the process: checked on every call, so that calls without symbols stay fast.
  static bool exist() noexcept;
  // Makes exist() return true, for symbols of another kind of environment.
  static void note_existence() noexcept;

  const Options& options() const {
    return options_;
  }
  ExprPool& pool() {
    return pool_;
  }

  // A tensor size with the value `hint`. The same name gives the same symbol; throws c10::ValueError if that has
  // another hint. Unnamed symbols are called s0, s1... 0 and 1 become numbers, with a guard if they have a name.
  ExprPtr create_size(int64_t hint, const std::string& name, const std::string& source);
  // A symbol with a hint, which may be any value.
  ExprPtr create_symbol(Value hint, const std::string& name, const std::string& source, Range range = {});
  // A symbol without a hint: u0, u1... (zuf0, zuf1... for floats). `is_size`: nonnegative.
  ExprPtr create_unbacked(ValueType type, bool is_size, const std::string& source);
  // Narrows the range of a symbol without a hint by its definition, without an assertion.
  void bound_symbol(ExprPtr symbol, Range range);

  // Whether operators may return symbols for data-dependent sizes and values.
  std::atomic<bool> allow_dynamic_output_shape_ops{true};
  std::atomic<bool> allow_scalar_outputs{true};

  // Symbols without hints that have been created and not yet taken: a graph recorder binds them to the outputs in which
  // they appear. Excludes those that this thread creates while an IgnoredSymbols is alive.
  std::vector<ExprPtr> pending_symbols() const;
  std::vector<ExprPtr> take_pending_symbols();
  // When a program is traced again, replaces `symbol` by `earlier`, so that the name from the first trace is kept.
  void rename_unbacked(ExprPtr symbol, ExprPtr earlier);

  // The value at the hints. A symbol without a hint gets an example value within its own range: for questions whose
  // answer does not depend on it, such as a dtype.
  std::optional<Value> example(ExprPtr expr);

  // Decides a boolean. Throws UnbackedSymbolError if that requires a hint and there is none.
  virtual bool decide(ExprPtr expr, Asking asking);
  // Decides without recording anything.
  std::optional<bool> statically_known(ExprPtr expr);
  // The value, recorded as a guard.
  virtual int64_t guard_int(ExprPtr expr);
  virtual double guard_float(ExprPtr expr);
  // The value at the hints of its symbols; nothing if one of them has none.
  virtual std::optional<Value> hint(ExprPtr expr);
  // Adds it as a fact and as a runtime assertion. Throws c10::ValueError if it is known to be violated.
  void constrain_range(ExprPtr expr, Range range);
  void mark_as_size(ExprPtr expr);

  Range range(ExprPtr expr);
  // The result of decide(), without recording anything or throwing; nothing where decide() would throw.
  virtual std::optional<bool> peek(ExprPtr expr, Asking asking);
  // Replaces symbols and atoms by the expressions they are known to equal.
  ExprPtr simplify(ExprPtr expr);
  // Incremented whenever the result of simplify() may change.
  uint64_t generation() const noexcept {
    return generation_.load(std::memory_order_acquire);
  }

  std::vector<Guard> guards() const;  // including assumed bounds of symbols
  std::vector<Guard> assertions() const;  // to be checked at run time, about symbols without hints
  std::vector<SymbolInfo> symbols() const;
  std::string text(ExprPtr expr) const;
  // One guard per line, with the operator that requested it.
  std::string format_guards() const;

  // Whether all guards hold for these values of the symbols. Assertions are included if all their symbols have values.
  // Throws c10::ValueError for an unknown name, and for a missing value of a symbol that is needed.
  bool guards_hold(const std::map<std::string, Value>& values) const;
  Value evaluate(ExprPtr expr, const std::map<std::string, Value>& values) const;

  // Restores the contents of guards() and assertions() for an environment loaded from a file.
  void restore(const std::vector<SymbolInfo>& symbols, const std::vector<std::optional<Value>>& hints);
  void restore_facts(const std::vector<Guard>& guards, const std::vector<Guard>& assertions);

 protected:
  ExprPtr add_symbol(Value hint, bool has_hint, SymbolInfo info);

 private:
  struct NamedValues;
  std::string fresh_name(const char* prefix, size_t& count);
  ExprPtr for_decision(ExprPtr expr);
  std::optional<bool> known(ExprPtr expr);  // for the form returned by for_decision
  std::optional<bool> known_comparison(ExprPtr expr);
  bool is_never_positive(ExprPtr polynomial);
  Range range_of(ExprPtr expr);
  Range range_of_sum(ExprPtr expr);
  void learn(ExprPtr fact);
  void learn_bound(ExprPtr polynomial);
  void learn_equality(ExprPtr polynomial);
  bool learn_multiple(ExprPtr atom);
  void add_replacement(ExprPtr from, ExprPtr to);
  void record(ExprPtr expr, std::vector<Guard>& list);
  [[noreturn]] void refuse_unbacked(ExprPtr expr) const;
  std::optional<bool> known_if_sizes_are_large(ExprPtr expr);
  void forget_memos();
  bool is_backed(ExprPtr expr) const;

  const Options options_;
  mutable std::recursive_mutex mutex_;
  ExprPool pool_;
  std::vector<SymbolInfo> symbols_;  // by index
  std::map<std::string, ExprPtr> by_name_;
  std::map<int64_t, ExprPtr> ducks_;
  size_t sizes_made_ = 0;
  size_t unbacked_made_ = 0;
  size_t unbacked_floats_made_ = 0;
  std::vector<ExprPtr> pending_;
  std::vector<Guard> guards_;
  std::vector<Guard> assertions_;
  ska::flat_hash_map<ExprPtr, ExprPtr> replacements_;  // symbols and atoms to the expressions they are known to equal
  ska::flat_hash_map<ExprPtr, ExprPtr> multiples_;  // symbols to a constant times their quotient
  ska::flat_hash_map<ExprPtr, int64_t> upper_bounds_;  // for sums without a constant
  std::set<ExprPtr> facts_;
  ska::flat_hash_map<ExprPtr, Range> range_memo_;
  ska::flat_hash_map<ExprPtr, ExprPtr> simplify_memo_;
  std::atomic<uint64_t> generation_{0};
  std::atomic<bool> replaces_{false};  // whether `replacements_` is not empty
};

// While alive, the symbols that this thread creates are not bound: they do not become pending.
class IgnoredSymbols {
 public:
  IgnoredSymbols();
  ~IgnoredSymbols();
  IgnoredSymbols(const IgnoredSymbols&) = delete;
  IgnoredSymbols& operator=(const IgnoredSymbols&) = delete;
  IgnoredSymbols(IgnoredSymbols&&) = delete;
  IgnoredSymbols& operator=(IgnoredSymbols&&) = delete;

  static bool active() noexcept;
};

// While alive, guards that this thread records are attributed to `op`.
class AskingOperator {
 public:
  explicit AskingOperator(const std::string& op);
  ~AskingOperator();
  AskingOperator(const AskingOperator&) = delete;
  AskingOperator& operator=(const AskingOperator&) = delete;
  AskingOperator(AskingOperator&&) = delete;
  AskingOperator& operator=(AskingOperator&&) = delete;

 private:
  const std::string* before_;
};

}  // namespace torchfake
