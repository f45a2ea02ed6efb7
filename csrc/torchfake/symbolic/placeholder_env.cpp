// Placeholders for the symbols of a call. See Note [Placeholders].
#include <torchfake/symbolic/placeholder_env.h>

#include <torchfake/symbolic/errors.h>

namespace torchfake {

namespace {

thread_local Placeholders* t_innermost = nullptr;

}  // namespace

// The placeholders of one nesting depth of calls: a rule may make calls whose symbols are its own placeholders.
class PlaceholderEnv final : public ShapeEnv {
 public:
  // The placeholder for an index, type and class; always the same object.
  ExprPtr placeholder(size_t index, ValueType type, SymbolClass known) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto key = std::make_tuple(index, type, known);
    if (const auto found = made_.find(key); found != made_.end()) {
      return found->second;
    }
    constexpr int64_t kLows[] = {Range::kNoLow, 0, 2};
    SymbolInfo info;
    info.name = c10::str("p", index, "_", static_cast<int>(type), "_", static_cast<int>(known));
    info.range = {kLows[static_cast<size_t>(known)], Range::kNoHigh};
    const ExprPtr made = add_symbol({type, 0, 0}, false, std::move(info));
    made_.emplace(key, made);
    return made;
  }

  bool decide(ExprPtr expr, Asking asking) override {
    if (const std::optional<bool> known = statically_known(expr)) {
      return *known;
    }
    return asked().decide(expr, asking);
  }

  std::optional<bool> peek(ExprPtr expr, Asking asking) override {
    const std::optional<bool> known = statically_known(expr);
    return known ? known : asked().peek(expr, asking);
  }

  int64_t guard_int(ExprPtr expr) override {
    if (expr->op == Op::kInt) {
      return expr->number;
    }
    Placeholders& placeholders = asked();
    const std::optional<Value> hint = placeholders.hint(expr);
    const int64_t value = hint ? hint->integer : placeholders.outer_->guard_int(placeholders.concrete(expr));
    decide(pool().eq(expr, pool().integer(value)), Asking::kGuard);
    return value;
  }

  double guard_float(ExprPtr expr) override {
    if (expr->op == Op::kFloat) {
      return expr->real;
    }
    Placeholders& placeholders = asked();
    const std::optional<Value> hint = placeholders.hint(expr);
    const double value = hint ? hint->real : placeholders.outer_->guard_float(placeholders.concrete(expr));
    decide(pool().eq(expr, pool().real(value)), Asking::kGuard);
    return value;
  }

  std::optional<Value> hint(ExprPtr expr) override {
    return expr->is_constant() ? std::optional(expr->hint) : asked().hint(expr);
  }

  Placeholders& asked() const {
    for (Placeholders* each = t_innermost; each != nullptr; each = each->around_) {
      if (each->own_.get() == this) {
        return *each;
      }
    }
    raise_dynamic_shapes("", "a symbolic number was kept beyond the operator that it belongs to.");
  }

 private:
  std::mutex mutex_;
  std::map<std::tuple<size_t, ValueType, SymbolClass>, ExprPtr> made_;
};

namespace {

// One per depth. Each is small and shared by all calls; cache entries keep it alive.
ShapeEnvPtr placeholder_env(size_t depth) {
  static auto* mutex = new std::mutex();  // never destroyed: threads may outlive static storage
  static auto* envs = new std::vector<ShapeEnvPtr>();
  std::lock_guard<std::mutex> lock(*mutex);
  while (envs->size() <= depth) {
    envs->push_back(std::make_shared<PlaceholderEnv>());
  }
  return (*envs)[depth];
}

}  // namespace

SymbolClass class_of(ShapeEnv& env, ExprPtr symbol) {
  if (symbol->type != ValueType::kInt) {
    return SymbolClass::kAny;
  }
  const int64_t low = env.range(symbol).low;
  return low >= 2 ? SymbolClass::kAtLeastTwo : low >= 0 ? SymbolClass::kNatural : SymbolClass::kAny;
}

Placeholders::Placeholders(ShapeEnvPtr env, c10::ArrayRef<ExprPtr> symbols)
    : outer_(std::move(env)), symbols_(symbols), around_(t_innermost) {
  size_t depth = 0;
  for (const Placeholders* each = t_innermost; each != nullptr; each = each->around_) {
    ++depth;
  }
  own_ = placeholder_env(depth);
  auto& own = static_cast<PlaceholderEnv&>(*own_);
  for (size_t i = 0; i < symbols.size(); ++i) {
    placeholders_.push_back(own.placeholder(i, symbols[i]->type, class_of(*outer_, symbols[i])));
  }
  t_innermost = this;
}

Placeholders::~Placeholders() {
  t_innermost = around_;
}

ExprPtr replace_symbols(ExprPool& pool, ExprPtr expr, c10::ArrayRef<ExprPtr> from, c10::ArrayRef<ExprPtr> to) {
  return pool.substitute(expr, [&](ExprPtr part) -> ExprPtr {
    if (part->op != Op::kSymbol) {
      return nullptr;
    }
    for (size_t i = 0; i < from.size(); ++i) {
      if (from[i] == part) {
        return to[i];
      }
    }
    raise_dynamic_shapes("", "a rule uses a symbol that is not among the arguments of its call.");
  });
}

bool Placeholders::cover(ExprPtr expr) const {
  return std::all_of(expr->symbols.begin(), expr->symbols.end(), [&](uint32_t index) {
    return std::any_of(symbols_.begin(), symbols_.end(), [&](ExprPtr symbol) {
      return static_cast<uint32_t>(symbol->number) == index;
    });
  });
}

ExprPtr Placeholders::abstract(ExprPtr expr) const {
  return replace_symbols(own_->pool(), expr, symbols_, placeholders_);
}

ExprPtr Placeholders::concrete(ExprPtr expr) const {
  return replace_symbols(outer_->pool(), expr, placeholders_, symbols_);
}

std::optional<Value> Placeholders::hint(ExprPtr expr) const {
  return evaluate(expr, [&](uint32_t index) -> std::optional<Value> {
    for (size_t i = 0; i < placeholders_.size(); ++i) {
      if (static_cast<uint32_t>(placeholders_[i]->number) == index) {
        return outer_->hint(symbols_[i]);
      }
    }
    return std::nullopt;
  });
}

bool Placeholders::fix_numbers_after(size_t count) const {
  return std::any_of(
      decisions_.begin() + static_cast<ptrdiff_t>(count), decisions_.end(), [](const Decision& decision) {
        return decision.asking == Asking::kGuard && decision.answer && decision.expr->op == Op::kEq &&
            decision.expr->symbols.size() == 1;
      });
}

std::vector<Placeholders::Decision> Placeholders::take_decisions_after(size_t count) {
  std::vector<Decision> taken(decisions_.begin() + static_cast<ptrdiff_t>(count), decisions_.end());
  decisions_.resize(count);
  return taken;
}

void Placeholders::add_decisions(const std::vector<Decision>& decisions) {
  decisions_.insert(decisions_.end(), decisions.begin(), decisions.end());
}

const Placeholders::Decision* Placeholders::find(ExprPtr expr, Asking asking) const {
  for (const Decision& decision : decisions_) {
    const bool same = decision.expr == expr && decision.asking == asking;
    // Already decided by the hint, whichever way the question was asked.
    const bool settled = decision.expr == expr && decision.asking != Asking::kStatically;
    if (same || settled) {
      return &decision;
    }
  }
  return nullptr;
}

bool Placeholders::decide(ExprPtr expr, Asking asking) {
  if (const Decision* made = find(expr, asking)) {
    return made->answer;
  }
  const ExprPtr outer = concrete(expr);
  const std::optional<bool> answer = outer_->peek(outer, asking);
  // Every symbol of such a call has a hint, so without an answer the environment can only raise an error.
  decisions_.push_back({asking, expr, answer ? *answer : outer_->decide(outer, asking)});
  return decisions_.back().answer;
}

std::optional<bool> Placeholders::peek(ExprPtr expr, Asking asking) const {
  const Decision* made = find(expr, asking);
  return made != nullptr ? std::optional(made->answer) : outer_->peek(concrete(expr), asking);
}

void Placeholders::record_decisions() const {
  // A static question records no guard, but an enclosing call depends on the answer as well.
  for (const Decision& decision : decisions_) {
    outer_->decide(concrete(decision.expr), decision.asking);
  }
}

}  // namespace torchfake
