// The symbols of a program's sizes: creation, queries, guards.
#include <torchfake/symbolic/shape_env.h>

#include <c10/util/Exception.h>

#include <torchfake/symbolic/errors.h>

#include <algorithm>

namespace torchfake {

namespace {

std::atomic<bool> g_exist{false};

thread_local const std::string* t_asking = nullptr;

bool is_identifier(const std::string& name) {
  const auto is_letter = [](char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_'; };
  return !name.empty() && is_letter(name[0]) && std::all_of(name.begin(), name.end(), [&](char c) {
    return is_letter(c) || std::isdigit(static_cast<unsigned char>(c)) != 0;
  });
}

}  // namespace

AskingOperator::AskingOperator(const std::string& op) : before_(t_asking) {
  t_asking = &op;
}

AskingOperator::~AskingOperator() {
  t_asking = before_;
}

bool ShapeEnv::exist() noexcept {
  return g_exist.load(std::memory_order_relaxed);
}

void ShapeEnv::note_existence() noexcept {
  g_exist.store(true, std::memory_order_relaxed);
}

ShapeEnv::ShapeEnv() : ShapeEnv(Options()) {}

ShapeEnv::ShapeEnv(Options options) : options_(options) {
  g_exist.store(true, std::memory_order_relaxed);
}

ShapeEnv::~ShapeEnv() = default;

std::string ShapeEnv::fresh_name(const char* prefix, size_t& count) {
  std::string name;
  do {
    name = prefix + std::to_string(count++);
  } while (by_name_.count(name) != 0);
  return name;
}

ExprPtr ShapeEnv::add_symbol(Value hint, bool has_hint, SymbolInfo info) {
  const std::string name = info.name;
  const ExprPtr symbol = pool_.new_symbol({name, hint.type, has_hint ? std::optional<Value>(hint) : std::nullopt});
  symbols_.resize(static_cast<size_t>(symbol->number) + 1);
  symbols_[symbol->number] = std::move(info);
  if (!symbols_[symbol->number].is_internal) {
    by_name_.emplace(name, symbol);
  }
  return symbol;
}

ExprPtr ShapeEnv::create_symbol(Value hint, const std::string& name, const std::string& source, Range range) {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  TORCH_CHECK_VALUE(
      name.empty() || is_identifier(name),
      "ShapeEnv: '",
      name,
      "' is not a valid name for a symbol; use letters, digits and _");
  if (const auto found = by_name_.find(name); !name.empty() && found != by_name_.end()) {
    TORCH_CHECK_VALUE(
        found->second->has_hint && found->second->hint == hint,
        "ShapeEnv: the symbol '",
        name,
        "' is ",
        found->second->has_hint ? std::to_string(found->second->hint.integer) : "without a hint",
        " elsewhere and ",
        hint.integer,
        " here; equal names need equal sizes");
    return found->second;
  }
  SymbolInfo info;
  info.name = name.empty() ? fresh_name(hint.type == ValueType::kFloat ? "zf" : "s", sizes_made_) : name;
  info.source = source;
  info.range = range;
  return add_symbol(hint, true, std::move(info));
}

ExprPtr ShapeEnv::create_size(int64_t hint, const std::string& name, const std::string& source) {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  TORCH_CHECK_VALUE(hint >= 0, "ShapeEnv: a size cannot be ", hint);
  const bool is_special = options_.specialize_zero_one && hint < 2;
  if (is_special) {
    if (!name.empty()) {
      const ExprPtr symbol = create_symbol(Value::of(hint), name, source, {0, Range::kNoHigh});
      decide(pool_.eq(symbol, pool_.integer(hint)), Asking::kGuard);
    }
    return pool_.integer(hint);
  }
  const bool is_duck = name.empty() && options_.duck_shape;
  if (const auto found = ducks_.find(hint); is_duck && found != ducks_.end()) {
    return found->second;
  }
  const ExprPtr symbol =
      create_symbol(Value::of(hint), name, source, {options_.specialize_zero_one ? 2 : 0, Range::kNoHigh});
  if (is_duck) {
    ducks_.emplace(hint, symbol);
  }
  return symbol;
}

bool ShapeEnv::is_backed(ExprPtr expr) const {
  return std::all_of(
      expr->symbols.begin(), expr->symbols.end(), [&](uint32_t index) { return symbols_[index].is_backed; });
}

void ShapeEnv::refuse_unbacked(ExprPtr expr) const {
  std::string names;
  for (const uint32_t index : expr->symbols) {
    if (!symbols_[index].is_backed) {
      names += (names.empty() ? "" : ", ") + symbols_[index].name;
    }
  }
  raise_unbacked_symbol(
      t_asking == nullptr ? "" : *t_asking,
      c10::str(
          "cannot decide `",
          text(expr),
          "`: ",
          names.empty() ? "its value does not fit into 64 bits" : names + " depends on data",
          ". State what holds with torch._check, or use torch.fx.experimental.symbolic_shapes.guard_or_false."));
}

void ShapeEnv::record(ExprPtr expr, std::vector<Guard>& list) {
  const bool is_there = std::any_of(list.begin(), list.end(), [&](const Guard& guard) { return guard.expr == expr; });
  if (!is_there) {
    list.push_back({expr, t_asking == nullptr ? "" : *t_asking});
  }
}

bool ShapeEnv::decide(ExprPtr expr, Asking asking) {
  if (expr->op == Op::kBool) {
    return expr->number != 0;
  }
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  if (const std::optional<bool> result = known(for_decision(expr))) {
    return *result;
  }
  if (asking == Asking::kStatically) {
    return false;
  }
  const ExprPtr asked = simplify(expr);
  if (!asked->has_hint || !is_backed(asked)) {
    if (asking == Asking::kOrFalse || asking == Asking::kOrTrue) {
      return asking == Asking::kOrTrue;
    }
    if (asking == Asking::kExpected) {
      record(asked, assertions_);
      learn(asked);
      return true;
    }
    if (asking == Asking::kSizeOblivious) {
      if (const std::optional<bool> result = known_if_sizes_are_large(asked)) {
        return *result;
      }
    }
    refuse_unbacked(asked);
  }
  const bool result = asked->hint.integer != 0;
  const ExprPtr fact = result ? asked : pool_.logical_not(asked);
  record(fact, guards_);
  learn(fact);
  return result;
}

std::optional<bool> ShapeEnv::peek(ExprPtr expr, Asking asking) {
  if (expr->op == Op::kBool) {
    return expr->number != 0;
  }
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  if (const std::optional<bool> result = known(for_decision(expr))) {
    return result;
  }
  if (asking == Asking::kStatically) {
    return false;
  }
  const ExprPtr asked = simplify(expr);
  if (asked->has_hint && is_backed(asked)) {
    return asked->hint.integer != 0;
  }
  switch (asking) {
    case Asking::kOrFalse:
    case Asking::kOrTrue:
      return asking == Asking::kOrTrue;
    case Asking::kExpected:
      return true;
    case Asking::kSizeOblivious:
      return known_if_sizes_are_large(asked);
    default:
      return std::nullopt;
  }
}

std::optional<Value> ShapeEnv::hint(ExprPtr expr) {
  const ExprPtr simple = simplify(expr);
  return simple->has_hint ? std::optional(simple->hint) : std::nullopt;
}

std::optional<bool> ShapeEnv::statically_known(ExprPtr expr) {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  return known(for_decision(expr));
}

// Assumes that sizes without a hint are at least 2.
std::optional<bool> ShapeEnv::known_if_sizes_are_large(ExprPtr expr) {
  std::vector<std::pair<uint32_t, Range>> before;
  for (const uint32_t index : expr->symbols) {
    SymbolInfo& info = symbols_[index];
    if (!info.is_backed && info.is_size) {
      before.emplace_back(index, info.range);
      info.range.low = std::max<int64_t>(info.range.low, std::min<int64_t>(2, info.range.high));
    }
  }
  range_memo_.clear();
  const std::optional<bool> result = known(for_decision(expr));
  for (const auto& [index, range] : before) {
    symbols_[index].range = range;
  }
  range_memo_.clear();
  return result;
}

int64_t ShapeEnv::guard_int(ExprPtr expr) {
  TORCH_CHECK_TYPE(expr->type == ValueType::kInt, "guard_int: not an integer");
  if (expr->op == Op::kInt) {
    return expr->number;
  }
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  const ExprPtr asked = simplify(expr);
  int64_t value = 0;
  const Range bounds = range(asked);
  if (asked->op == Op::kInt) {
    value = asked->number;
  } else if (bounds.low == bounds.high) {
    value = bounds.low;
  } else if (asked->has_hint && is_backed(asked)) {
    value = asked->hint.integer;
  } else {
    refuse_unbacked(asked);
  }
  decide(pool_.eq(expr, pool_.integer(value)), Asking::kGuard);
  return value;
}

double ShapeEnv::guard_float(ExprPtr expr) {
  TORCH_CHECK_TYPE(expr->type == ValueType::kFloat, "guard_float: not a float");
  if (expr->op == Op::kFloat) {
    return expr->real;
  }
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  const ExprPtr asked = simplify(expr);
  if (!asked->has_hint || !is_backed(asked)) {
    refuse_unbacked(asked);
  }
  decide(pool_.eq(asked, pool_.real(asked->hint.real)), Asking::kGuard);
  return asked->hint.real;
}

void ShapeEnv::constrain_range(ExprPtr expr, Range range) {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  TORCH_CHECK_VALUE(range.low <= range.high, "constrain_range: the lowest value is above the highest");
  ExprPtr fact = pool_.boolean(true);
  if (range.low != Range::kNoLow) {
    fact = pool_.logical_and(fact, pool_.le(pool_.integer(range.low), expr));
  }
  if (range.high != Range::kNoHigh) {
    fact = pool_.logical_and(fact, pool_.le(expr, pool_.integer(range.high)));
  }
  TORCH_CHECK_VALUE(
      statically_known(fact) != std::optional(false),
      "constrain_range: `",
      text(fact),
      "` contradicts what is known of it");
  TORCH_CHECK_VALUE(decide(fact, Asking::kExpected), "constrain_range: `", text(fact), "` does not hold for the hint");
}

void ShapeEnv::mark_as_size(ExprPtr expr) {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  if (expr->op == Op::kSymbol && !symbols_[expr->number].is_backed) {
    symbols_[expr->number].is_size = true;
  }
}

std::vector<Guard> ShapeEnv::guards() const {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  std::vector<Guard> result;
  auto& pool = const_cast<ExprPool&>(pool_);
  if (options_.specialize_zero_one) {
    for (size_t i = 0; i < symbols_.size(); ++i) {
      const ExprPtr symbol = pool_.symbol(static_cast<uint32_t>(i));
      const bool is_size = symbols_[i].is_backed && !symbols_[i].is_internal && symbol->type == ValueType::kInt;
      if (is_size && symbols_[i].range.low >= 2 && symbol->hint.integer >= 2) {
        result.push_back({pool.le(pool.integer(2), symbol), ""});
      }
    }
  }
  for (const Guard& guard : guards_) {
    const bool is_there =
        std::any_of(result.begin(), result.end(), [&](const Guard& other) { return other.expr == guard.expr; });
    if (!is_there) {
      result.push_back(guard);
    }
  }
  return result;
}

std::vector<Guard> ShapeEnv::assertions() const {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  return assertions_;
}

std::vector<SymbolInfo> ShapeEnv::symbols() const {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  return symbols_;
}

std::string ShapeEnv::text(ExprPtr expr) const {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  return to_string(expr, [&](uint32_t index) { return symbols_[index].name; });
}

std::string ShapeEnv::format_guards() const {
  std::string result;
  for (const Guard& guard : guards()) {
    result += text(guard.expr) + (guard.op.empty() ? "" : "  # " + guard.op) + "\n";
  }
  for (const Guard& assertion : assertions()) {
    result += text(assertion.expr) + "  # at run time" + (assertion.op.empty() ? "" : ", " + assertion.op) + "\n";
  }
  return result;
}

struct ShapeEnv::NamedValues {
  NamedValues(const ShapeEnv& env, const std::map<std::string, Value>& values) : env_(env) {
    for (const auto& [name, value] : values) {
      const auto found = env.by_name_.find(name);
      TORCH_CHECK_VALUE(found != env.by_name_.end(), "ShapeEnv: there is no symbol '", name, "'");
      TORCH_CHECK_TYPE(
          found->second->type == value.type, "ShapeEnv: the value of '", name, "' has another type than the symbol");
      values_.emplace(static_cast<uint32_t>(found->second->number), value);
    }
  }

  bool has_all(ExprPtr expr) const {
    return std::all_of(
        expr->symbols.begin(), expr->symbols.end(), [&](uint32_t index) { return values_.count(index) != 0; });
  }

  std::optional<Value> of(ExprPtr expr) const {
    return torchfake::evaluate(expr, [&](uint32_t index) -> std::optional<Value> {
      const auto found = values_.find(index);
      TORCH_CHECK_VALUE(
          found != values_.end(), "ShapeEnv: no value was given for the symbol '", env_.symbols_[index].name, "'");
      return found->second;
    });
  }

 private:
  const ShapeEnv& env_;
  std::map<uint32_t, Value> values_;
};

bool ShapeEnv::guards_hold(const std::map<std::string, Value>& values) const {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  const NamedValues named(*this, values);
  for (const Guard& guard : guards()) {
    const std::optional<Value> value = named.of(guard.expr);
    if (!value || value->integer == 0) {
      return false;
    }
  }
  for (const Guard& assertion : assertions_) {
    const std::optional<Value> value =
        named.has_all(assertion.expr) ? named.of(assertion.expr) : std::optional(Value::of(true));
    if (!value || value->integer == 0) {
      return false;
    }
  }
  return true;
}

Value ShapeEnv::evaluate(ExprPtr expr, const std::map<std::string, Value>& values) const {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  const std::optional<Value> value = NamedValues(*this, values).of(expr);
  TORCH_CHECK_VALUE(value, "ShapeEnv: `", text(expr), "` has no value there: a division by zero, or an overflow");
  return *value;
}

void ShapeEnv::restore(const std::vector<SymbolInfo>& symbols, const std::vector<std::optional<Value>>& hints) {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  TORCH_CHECK_VALUE(symbols_.empty(), "ShapeEnv: only an environment without symbols can be restored");
  for (size_t i = 0; i < symbols.size(); ++i) {
    const std::optional<Value>& hint = hints[i];
    const ExprPtr symbol = add_symbol(hint.value_or(Value()), hint.has_value(), symbols[i]);
    if (options_.duck_shape && hint && hint->type == ValueType::kInt && symbols[i].range.low >= 0 &&
        symbols[i].name[0] == 's') {
      ducks_.emplace(hint->integer, symbol);
    }
  }
}

void ShapeEnv::restore_facts(const std::vector<Guard>& guards, const std::vector<Guard>& assertions) {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  guards_ = guards;
  assertions_ = assertions;
  for (const auto* list : {&guards_, &assertions_}) {
    for (const Guard& guard : *list) {
      learn(guard.expr);
    }
  }
}

}  // namespace torchfake
