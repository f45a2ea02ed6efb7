// The symbols of a program's sizes, what is known of them, and what has been asked: guards.
#pragma once

#include <torchfake/symbolic/expr.h>

#include <limits>
#include <map>
#include <set>

namespace torchfake {

// The values that an integer can have. The ends of int64_t stand for no bound.
struct Range {
  static constexpr int64_t kNoLow = std::numeric_limits<int64_t>::min();
  static constexpr int64_t kNoHigh = std::numeric_limits<int64_t>::max();
  int64_t low = kNoLow;
  int64_t high = kNoHigh;

  bool operator==(const Range& other) const = default;
};

// How a decision was asked for, and so what becomes of one that the known facts do not settle.
enum class Asking : uint8_t {
  kGuard,  // by the hint, and a guard is recorded; an error where there is no hint
  kOrFalse,  // the same, but false where there is no hint
  kOrTrue,
  kSizeOblivious,  // the same, but a size without a hint is taken to be neither 0 nor 1
  kStatically,  // false: whether it is known to be true
  kExpected,  // recorded as a guard, or, where there is no hint, as an assertion for run time
};

struct Guard {
  ExprPtr expr;  // true
  std::string op;  // the operator that asked, or empty
};

struct SymbolInfo {
  std::string name;
  std::string source;
  Range range;
  bool is_backed = true;  // has a hint
  bool is_internal = false;  // stands for a quotient that is known to be exact
  bool is_size = false;  // without a hint: used as a size
};

// Thread-safe. Expressions belong to the environment's pool and live as long as it does.
class ShapeEnv {
 public:
  struct Options {
    bool duck_shape = true;  // sizes without a name that are equal are one symbol
    bool specialize_zero_one = true;  // sizes of 0 and 1 are numbers, and symbols are neither
  };
  ShapeEnv();
  explicit ShapeEnv(Options options);
  virtual ~ShapeEnv();
  ShapeEnv(const ShapeEnv&) = delete;
  ShapeEnv& operator=(const ShapeEnv&) = delete;
  ShapeEnv(ShapeEnv&&) = delete;
  ShapeEnv& operator=(ShapeEnv&&) = delete;

  // Whether there is one in the process: asked of every call, so that calls without symbols stay as fast as they are.
  static bool exist() noexcept;
  // From now on there is: for symbols of another kind of environment.
  static void note_existence() noexcept;

  const Options& options() const {
    return options_;
  }
  ExprPool& pool() {
    return pool_;
  }

  // The size of a tensor that is `hint` now. One name is one symbol; throws c10::ValueError if it has another hint. Without
  // a name: s0, s1... 0 and 1 are numbers, with a guard where they have a name.
  ExprPtr create_size(int64_t hint, const std::string& name, const std::string& source);
  // A symbol with a hint, whatever that is.
  ExprPtr create_symbol(Value hint, const std::string& name, const std::string& source, Range range = {});
  // One without a hint: u0, u1... (zuf0, zuf1... for floats). `is_size`: at least zero.
  ExprPtr create_unbacked(ValueType type, bool is_size, const std::string& source);
  // Narrows the values of a symbol without a hint: what its definition says, and nobody has to assert.
  void bound_symbol(ExprPtr symbol, Range range);

  // Whether operators may return symbols for sizes, and for values, that only data tells.
  std::atomic<bool> allow_dynamic_output_shape_ops{true};
  std::atomic<bool> allow_scalar_outputs{true};

  // The symbols without hints that were made and not taken yet: whoever records a graph binds them to the outputs in which
  // they appear. None that this thread makes while an IgnoredSymbols lives.
  std::vector<ExprPtr> pending_symbols() const;
  std::vector<ExprPtr> take_pending_symbols();
  // `symbol`, of a program that was traced again, is `earlier`: the name of the first trace stays.
  void rename_unbacked(ExprPtr symbol, ExprPtr earlier);

  // The value at the hints. A symbol without a hint has the value of an example that fits what is known of it alone:
  // for questions whose answer does not depend on it, such as a dtype.
  std::optional<Value> example(ExprPtr expr);

  // Decides a boolean. Throws UnbackedSymbolError where that takes a hint and there is none.
  virtual bool decide(ExprPtr expr, Asking asking);
  // Without recording anything.
  std::optional<bool> statically_known(ExprPtr expr);
  // The value, with a guard that it is this one.
  virtual int64_t guard_int(ExprPtr expr);
  virtual double guard_float(ExprPtr expr);
  // The value where symbols have their hints; nothing where one has none.
  virtual std::optional<Value> hint(ExprPtr expr);
  // Makes it a fact, as an assertion for run time. Throws c10::ValueError if it is known to be wrong.
  void constrain_range(ExprPtr expr, Range range);
  void mark_as_size(ExprPtr expr);

  Range range(ExprPtr expr);
  // What decide() would answer. Records nothing, and never throws; nothing where decide() would.
  std::optional<bool> peek(ExprPtr expr, Asking asking);
  // With what is known to be equal in its place.
  ExprPtr simplify(ExprPtr expr);
  // Advances whenever simplify() may say something else.
  uint64_t generation() const noexcept {
    return generation_.load(std::memory_order_acquire);
  }

  std::vector<Guard> guards() const;  // bounds of symbols that were assumed among them
  std::vector<Guard> assertions() const;  // to be checked at run time, of symbols without hints
  std::vector<SymbolInfo> symbols() const;
  std::string text(ExprPtr expr) const;
  // One guard a line, with the operator that asked.
  std::string format_guards() const;

  // Whether all guards hold where the symbols have these values. Assertions count where all their symbols have values.
  // Throws c10::ValueError for a name that is no symbol, and where a symbol that counts is missing.
  bool guards_hold(const std::map<std::string, Value>& values) const;
  Value evaluate(ExprPtr expr, const std::map<std::string, Value>& values) const;

  // Sets what guards() and assertions() say, for one that is loaded from a file.
  void restore(const std::vector<SymbolInfo>& symbols, const std::vector<std::optional<Value>>& hints);
  void restore_facts(const std::vector<Guard>& guards, const std::vector<Guard>& assertions);

 protected:
  ExprPtr add_symbol(Value hint, bool has_hint, SymbolInfo info);

 private:
  struct NamedValues;
  std::string fresh_name(const char* prefix, size_t& count);
  ExprPtr for_decision(ExprPtr expr);
  std::optional<bool> known(ExprPtr expr);  // of the form for decisions
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
  ska::flat_hash_map<ExprPtr, ExprPtr> replacements_;  // of symbols and atoms, by what they are known to equal
  ska::flat_hash_map<ExprPtr, ExprPtr> multiples_;  // of symbols, by a number times their quotient
  ska::flat_hash_map<ExprPtr, int64_t> upper_bounds_;  // of sums without a constant
  std::set<ExprPtr> facts_;
  ska::flat_hash_map<ExprPtr, Range> range_memo_;
  ska::flat_hash_map<ExprPtr, ExprPtr> simplify_memo_;
  std::atomic<uint64_t> generation_{0};
  std::atomic<bool> replaces_{false};  // whether `replacements_` has any
};

// While one lives, symbols that this thread makes are bound to nothing: they are not among the pending ones.
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

// While one lives, guards that this thread records name `op`.
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
