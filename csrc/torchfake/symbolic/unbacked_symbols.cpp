// Symbols without hints: data-dependent values and sizes.
#include <torchfake/symbolic/shape_env.h>

#include <c10/util/Exception.h>

#include <algorithm>

namespace torchfake {

namespace {

thread_local int t_ignored = 0;

// An example size. It has many divisors, so that conditions on sizes (divisible by heads, by groups) tend to hold, and
// differs from the special sizes 0 and 1.
constexpr int64_t kExample = 5040;

}  // namespace

IgnoredSymbols::IgnoredSymbols() {
  ++t_ignored;
}

IgnoredSymbols::~IgnoredSymbols() {
  --t_ignored;
}

bool IgnoredSymbols::active() noexcept {
  return t_ignored > 0;
}

ExprPtr ShapeEnv::create_unbacked(ValueType type, bool is_size, const std::string& source) {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  SymbolInfo info;
  info.name = type == ValueType::kFloat ? fresh_name("zuf", unbacked_floats_made_) : fresh_name("u", unbacked_made_);
  info.source = source;
  info.is_backed = false;
  info.is_size = is_size;
  info.range = is_size ? Range{0, Range::kNoHigh} : Range{};
  const ExprPtr symbol = add_symbol({type, 0, 0}, false, std::move(info));
  if (!IgnoredSymbols::active()) {
    pending_.push_back(symbol);
  }
  return symbol;
}

void ShapeEnv::bound_symbol(ExprPtr symbol, Range range) {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  Range& kept = symbols_[symbol->number].range;
  kept = {std::max(kept.low, range.low), std::min(kept.high, range.high)};
  forget_memos();
}

std::vector<ExprPtr> ShapeEnv::pending_symbols() const {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  return pending_;
}

std::vector<ExprPtr> ShapeEnv::take_pending_symbols() {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  return std::exchange(pending_, {});
}

void ShapeEnv::rename_unbacked(ExprPtr symbol, ExprPtr earlier) {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  const auto is_unbacked = [&](ExprPtr expr) { return expr->op == Op::kSymbol && !symbols_[expr->number].is_backed; };
  TORCH_CHECK_VALUE(is_unbacked(symbol) && is_unbacked(earlier), "rename_unbacked: expected two symbols without hints");
  if (simplify(symbol) == simplify(earlier)) {
    return;
  }
  if (simplify(symbol) != symbol) {  // already replaced: then so is the earlier one
    learn(pool_.eq(simplify(symbol), simplify(earlier)));
    return;
  }
  const SymbolInfo& from = symbols_[symbol->number];
  SymbolInfo& to = symbols_[earlier->number];
  to.range = {std::max(from.range.low, to.range.low), std::min(from.range.high, to.range.high)};
  to.is_size = to.is_size || from.is_size;
  add_replacement(symbol, simplify(earlier));
}

std::optional<Value> ShapeEnv::example(ExprPtr expr) {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  ska::flat_hash_map<uint32_t, int64_t> chosen;
  const auto value_of = [&](uint32_t index) -> std::optional<Value> {
    const ExprPtr symbol = pool_.symbol(index);
    if (symbol->has_hint) {
      return symbol->hint;
    }
    if (symbol->type == ValueType::kFloat) {
      return Value::of(0.5);
    }
    if (const auto found = chosen.find(index); found != chosen.end()) {
      return Value::of(found->second);
    }
    const Range bounds = range_of(symbol);
    return Value::of(std::clamp(kExample, bounds.low, bounds.high));
  };
  const auto is_violated = [&](const Guard& assertion) {
    const std::optional<Value> value = torchfake::evaluate(assertion.expr, value_of);
    return value && value->integer == 0;
  };
  // Assertions about several symbols, such as u0 + 2 <= s0, may require smaller examples.
  for (size_t i = 0; i < assertions_.size(); ++i) {
    const auto holds_so_far = [&] {
      const auto end = assertions_.begin() + static_cast<ptrdiff_t>(i) + 1;
      return std::none_of(assertions_.begin(), end, is_violated);
    };
    for (const uint32_t index : assertions_[i].expr->symbols) {
      const ExprPtr symbol = pool_.symbol(index);
      if (symbol->has_hint || symbol->type != ValueType::kInt || !is_violated(assertions_[i])) {
        continue;
      }
      const Range bounds = range_of(symbol);
      for (const int64_t candidate : {2, 3, 1, 0, 4, 5, 6, 16}) {
        chosen[index] = std::clamp<int64_t>(candidate, bounds.low, bounds.high);
        if (holds_so_far()) {
          break;
        }
        chosen.erase(index);
      }
    }
  }
  return torchfake::evaluate(for_decision(expr), value_of);
}

}  // namespace torchfake
