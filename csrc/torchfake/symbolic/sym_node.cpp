// Symbolic expressions as the nodes of PyTorch's SymInt, SymFloat and SymBool.
#include <torchfake/symbolic/sym_node.h>

#include <torchfake/symbolic/errors.h>

#include <atomic>

namespace torchfake {

namespace {

std::atomic<NodeUnwrapper> g_unwrap{nullptr};
std::atomic<NodeWrapper> g_wrap{nullptr};
std::atomic<ForeignNumber> g_foreign{nullptr};

c10::SymNode ready_for_python(const ShapeEnvPtr& env, ExprPtr expr) {
  c10::SymNode node = c10::make_intrusive<SymExprNode>(env, expr);
  const NodeWrapper wrap = g_wrap.load(std::memory_order_acquire);
  return wrap == nullptr ? node : wrap(node);
}

}  // namespace

void set_node_wrapper(NodeWrapper wrap) {
  g_wrap.store(wrap, std::memory_order_release);
}

void set_foreign_numbers(ForeignNumber finder) {
  g_foreign.store(finder, std::memory_order_release);
}

std::optional<NumberFor> number_for(c10::SymNodeImpl* node) {
  if (SymExprNode* expr = as_expr_node(node)) {
    if (const std::optional<Value> hint = expr->hint()) {
      return NumberFor{*hint, true};
    }
    const std::optional<Value> value = expr->env()->example(expr->raw_expr());
    return value ? std::optional(NumberFor{*value, false}) : std::nullopt;
  }
  const ForeignNumber finder = g_foreign.load(std::memory_order_acquire);
  return finder == nullptr || node == nullptr ? std::nullopt : finder(node);
}

void set_node_unwrapper(NodeUnwrapper unwrap) {
  g_unwrap.store(unwrap, std::memory_order_release);
}

SymExprNode* as_expr_node(c10::SymNodeImpl* node) {
  if (node != nullptr && typeid(*node) == typeid(SymExprNode)) {
    return static_cast<SymExprNode*>(node);
  }
  const NodeUnwrapper unwrap = g_unwrap.load(std::memory_order_acquire);
  return unwrap == nullptr || node == nullptr ? nullptr : dynamic_cast<SymExprNode*>(unwrap(node));
}

SymExprNode* as_expr_node(const c10::SymNode& node) {
  return as_expr_node(node.get());
}

c10::SymInt to_sym_int(const ShapeEnvPtr& env, ExprPtr expr) {
  return expr->op == Op::kInt ? c10::SymInt(expr->number)
                              : c10::SymInt(c10::SymNode(c10::make_intrusive<SymExprNode>(env, expr)));
}

c10::SymFloat to_sym_float(const ShapeEnvPtr& env, ExprPtr expr) {
  return expr->op == Op::kFloat ? c10::SymFloat(expr->real) : c10::SymFloat(ready_for_python(env, expr));
}

c10::SymBool to_sym_bool(const ShapeEnvPtr& env, ExprPtr expr) {
  return expr->op == Op::kBool ? c10::SymBool(expr->number != 0) : c10::SymBool(ready_for_python(env, expr));
}

ExprPtr to_expr(const ShapeEnvPtr& env, const c10::SymInt& value) {
  if (const std::optional<int64_t> number = value.maybe_as_int()) {
    return env->pool().integer(*number);
  }
  SymExprNode* node = as_expr_node(value.toSymNodeImplUnowned());
  if (node == nullptr || node->env() != env) {
    raise_dynamic_shapes("", c10::str("the symbolic size ", value, " belongs to another ShapeEnv than the mode's."));
  }
  return node->expr();
}

bool statically_equal(const c10::SymInt& a, const c10::SymInt& b) {
  const std::optional<int64_t> x = a.maybe_as_int();
  const std::optional<int64_t> y = b.maybe_as_int();
  if (x && y) {
    return *x == *y;
  }
  return TORCH_STATICALLY_KNOWN_TRUE(a.sym_eq(b));
}

std::optional<Value> SymExprNode::hint() const {
  return env_->hint(expr_);
}

c10::SymNode SymExprNode::wrap(ExprPtr expr) const {
  return c10::make_intrusive<SymExprNode>(env_, expr);
}

ExprPtr SymExprNode::unwrap(const c10::SymNode& other) const {
  if (SymExprNode* node = as_expr_node(other)) {
    if (node->env_ != env_) {
      raise_dynamic_shapes(
          "", c10::str("`", env_->text(expr_), "` and `", node->str(), "` belong to different ShapeEnvs."));
    }
    return node->expr_;
  }
  if (other->is_constant() || other->maybe_as_int()) {
    if (const std::optional<int64_t> number = other->maybe_as_int()) {
      return pool().integer(*number);
    }
    if (const std::optional<int64_t> number = other->constant_int()) {
      return pool().integer(*number);
    }
    if (const std::optional<bool> boolean = other->constant_bool()) {
      return pool().boolean(*boolean);
    }
  }
  raise_dynamic_shapes(
      "", c10::str("`", env_->text(expr_), "` is a symbol of torchfake's and `", other->str(), "` is not."));
}

// Mixed integers and floats become floats; mixed booleans and integers become integers.
SymExprNode::Pair SymExprNode::promote(const c10::SymNode& other) const {
  ExprPtr a = expr_;
  ExprPtr b = unwrap(other);
  if (a->type != b->type) {
    for (ExprPtr* each : {&a, &b}) {
      if ((*each)->type == ValueType::kBool) {
        *each = pool().bool_to_int(*each);
      }
    }
    if (a->type != b->type) {
      for (ExprPtr* each : {&a, &b}) {
        if ((*each)->type == ValueType::kInt) {
          *each = pool().to_float(*each);
        }
      }
    }
  }
  return {a, b, a->type == ValueType::kFloat};
}

bool SymExprNode::is_int() {
  return expr_->type == ValueType::kInt;
}

bool SymExprNode::is_bool() {
  return expr_->type == ValueType::kBool;
}

bool SymExprNode::is_float() {
  return expr_->type == ValueType::kFloat;
}

c10::SymNode SymExprNode::add(const c10::SymNode& other) {
  return at_the_boundary([&]() -> c10::SymNode {
    const auto [a, b, is_float] = promote(other);
    return wrap(is_float ? pool().float_binary(Op::kFloatAdd, a, b) : pool().add(a, b));
  });
}

c10::SymNode SymExprNode::sub(const c10::SymNode& other) {
  return at_the_boundary([&]() -> c10::SymNode {
    const auto [a, b, is_float] = promote(other);
    return wrap(is_float ? pool().float_binary(Op::kFloatSub, a, b) : pool().sub(a, b));
  });
}

c10::SymNode SymExprNode::mul(const c10::SymNode& other) {
  return at_the_boundary([&]() -> c10::SymNode {
    const auto [a, b, is_float] = promote(other);
    return wrap(is_float ? pool().float_binary(Op::kFloatMul, a, b) : pool().mul(a, b));
  });
}

c10::SymNode SymExprNode::truediv(const c10::SymNode& other) {
  return at_the_boundary([&]() -> c10::SymNode {
    const auto [a, b, is_float] = promote(other);
    return wrap(is_float ? pool().float_binary(Op::kFloatDiv, a, b) : pool().truediv(a, b));
  });
}

c10::SymNode SymExprNode::pow(const c10::SymNode& other) {
  return at_the_boundary([&]() -> c10::SymNode {
    const auto [a, b, is_float] = promote(other);
    return wrap(is_float ? pool().float_binary(Op::kFloatPow, a, b) : pool().pow(a, b));
  });
}

c10::SymNode SymExprNode::floordiv(const c10::SymNode& other) {
  return at_the_boundary([&]() -> c10::SymNode {
    const auto [a, b, is_float] = promote(other);
    if (is_float) {
      return wrap(pool().to_float(pool().to_int(Op::kFloor, pool().float_binary(Op::kFloatDiv, a, b))));
    }
    return wrap(pool().floordiv(env_->simplify(a), env_->simplify(b)));
  });
}

c10::SymNode SymExprNode::mod(const c10::SymNode& other) {
  return at_the_boundary([&]() -> c10::SymNode {
    const auto [a, b, is_float] = promote(other);
    return wrap(is_float ? pool().float_binary(Op::kFloatMod, a, b) : pool().mod(env_->simplify(a), env_->simplify(b)));
  });
}

c10::SymNode SymExprNode::eq(const c10::SymNode& other) {
  return at_the_boundary([&]() -> c10::SymNode {
    const Pair pair = promote(other);
    return wrap(pool().eq(pair.a, pair.b));
  });
}

c10::SymNode SymExprNode::ne(const c10::SymNode& other) {
  return at_the_boundary([&]() -> c10::SymNode {
    const Pair pair = promote(other);
    return wrap(pool().ne(pair.a, pair.b));
  });
}

c10::SymNode SymExprNode::gt(const c10::SymNode& other) {
  return at_the_boundary([&]() -> c10::SymNode {
    const Pair pair = promote(other);
    return wrap(pool().lt(pair.b, pair.a));
  });
}

c10::SymNode SymExprNode::lt(const c10::SymNode& other) {
  return at_the_boundary([&]() -> c10::SymNode {
    const Pair pair = promote(other);
    return wrap(pool().lt(pair.a, pair.b));
  });
}

c10::SymNode SymExprNode::le(const c10::SymNode& other) {
  return at_the_boundary([&]() -> c10::SymNode {
    const Pair pair = promote(other);
    return wrap(pool().le(pair.a, pair.b));
  });
}

c10::SymNode SymExprNode::ge(const c10::SymNode& other) {
  return at_the_boundary([&]() -> c10::SymNode {
    const Pair pair = promote(other);
    return wrap(pool().le(pair.b, pair.a));
  });
}

c10::SymNode SymExprNode::to_int(Op op) const {
  return at_the_boundary(
      [&]() -> c10::SymNode { return wrap(expr_->type == ValueType::kFloat ? pool().to_int(op, expr_) : expr_); });
}

c10::SymNode SymExprNode::ceil() {
  return to_int(Op::kCeil);
}

c10::SymNode SymExprNode::floor() {
  return to_int(Op::kFloor);
}

c10::SymNode SymExprNode::neg() {
  return at_the_boundary([&]() -> c10::SymNode {
    return expr_->type == ValueType::kFloat ? float_function(FloatFunction::kNeg) : wrap(pool().neg(expr_));
  });
}

c10::SymNode SymExprNode::float_function(FloatFunction function) const {
  return at_the_boundary([&]() -> c10::SymNode {
    return wrap(pool().float_function(function, expr_->type == ValueType::kFloat ? expr_ : pool().to_float(expr_)));
  });
}

c10::SymNode SymExprNode::bitwise(Op op, const c10::SymNode& other) const {
  return at_the_boundary([&]() -> c10::SymNode {
    const Pair pair = promote(other);
    return wrap(pool().bitwise(op, pair.a, pair.b));
  });
}

// Returns one of the integer operands if it is known to be the smaller or the larger.
c10::SymNode SymExprNode::extremum(const c10::SymNode& other, bool is_max) const {
  return at_the_boundary([&]() -> c10::SymNode {
    const auto [a, b, is_float] = promote(other);
    if (is_float) {
      return wrap(pool().float_binary(is_max ? Op::kFloatMax : Op::kFloatMin, a, b));
    }
    const ExprPtr smaller = pool().le(a, b);
    if (env_->decide(smaller, Asking::kStatically)) {
      return wrap(is_max ? b : a);
    }
    if (env_->decide(pool().logical_not(smaller), Asking::kStatically)) {
      return wrap(is_max ? a : b);
    }
    return wrap(is_max ? pool().max(a, b) : pool().min(a, b));
  });
}

c10::SymNode SymExprNode::sym_min(const c10::SymNode& other) {
  return extremum(other, /*is_max=*/false);
}

c10::SymNode SymExprNode::sym_max(const c10::SymNode& other) {
  return extremum(other, /*is_max=*/true);
}

c10::SymNode SymExprNode::sym_or(const c10::SymNode& other) {
  return at_the_boundary([&]() -> c10::SymNode { return wrap(pool().logical_or(expr_, unwrap(other))); });
}

c10::SymNode SymExprNode::sym_and(const c10::SymNode& other) {
  return at_the_boundary([&]() -> c10::SymNode { return wrap(pool().logical_and(expr_, unwrap(other))); });
}

c10::SymNode SymExprNode::sym_not() {
  return at_the_boundary([&]() -> c10::SymNode { return wrap(pool().logical_not(expr_)); });
}

c10::SymNode SymExprNode::sym_ite(const c10::SymNode& then, const c10::SymNode& otherwise) {
  return at_the_boundary([&]() -> c10::SymNode { return wrap(pool().ite(expr_, unwrap(then), unwrap(otherwise))); });
}

c10::SymNode SymExprNode::clone() {
  return wrap(expr_);
}

c10::SymNode SymExprNode::sym_float() {
  return at_the_boundary(
      [&]() -> c10::SymNode { return wrap(expr_->type == ValueType::kFloat ? expr_ : pool().to_float(expr_)); });
}

c10::SymNode SymExprNode::wrap_int(int64_t value) {
  return wrap(pool().integer(value));
}

c10::SymNode SymExprNode::wrap_float(double value) {
  return wrap(pool().real(value));
}

c10::SymNode SymExprNode::wrap_bool(bool value) {
  return wrap(pool().boolean(value));
}

int64_t SymExprNode::guard_int(const char* file, int64_t line) {
  return at_the_boundary([&] { return env_->guard_int(expr_); });
}

bool SymExprNode::decide(Asking asking) const {
  return at_the_boundary([&] {
    const ExprPtr question = expr_->type == ValueType::kInt ? pool().ne(expr_, pool().integer(0)) : expr_;
    TORCH_CHECK_TYPE(question->type == ValueType::kBool, "guard_bool: not a boolean");
    return env_->decide(question, asking);
  });
}

bool SymExprNode::guard_bool(const char* file, int64_t line) {
  return decide(Asking::kGuard);
}

double SymExprNode::guard_float(const char* file, int64_t line) {
  return at_the_boundary(
      [&] { return env_->guard_float(expr_->type == ValueType::kFloat ? expr_ : pool().to_float(expr_)); });
}

bool SymExprNode::guard_size_oblivious(const char* file, int64_t line) {
  return decide(Asking::kSizeOblivious);
}

bool SymExprNode::guard_or_false(const char* file, int64_t line) {
  return decide(Asking::kOrFalse);
}

bool SymExprNode::guard_or_true(const char* file, int64_t line) {
  return decide(Asking::kOrTrue);
}

bool SymExprNode::statically_known_true(const char* file, int64_t line) {
  return decide(Asking::kStatically);
}

bool SymExprNode::expect_true(const char* file, int64_t line) {
  return decide(Asking::kExpected);
}

int64_t SymExprNode::int_() {
  return guard_int("", 0);
}

bool SymExprNode::bool_() {
  if (expr_->type == ValueType::kFloat) {
    return at_the_boundary([&] { return env_->decide(pool().ne(expr_, pool().real(0)), Asking::kGuard); });
  }
  return decide(Asking::kGuard);
}

bool SymExprNode::has_hint() {
  return env_->hint(expr_).has_value();
}

std::string SymExprNode::str() {
  return env_->text(expr());
}

std::optional<int64_t> SymExprNode::constant_int() {
  return expr_->op == Op::kInt ? std::optional(expr_->number) : std::nullopt;
}

std::optional<bool> SymExprNode::constant_bool() {
  return expr_->op == Op::kBool ? std::optional(expr_->number != 0) : std::nullopt;
}

std::optional<int64_t> SymExprNode::maybe_as_int() {
  const ExprPtr simple = expr();
  return simple->op == Op::kInt ? std::optional(simple->number) : std::nullopt;
}

// PyTorch's Python code reads constants only as integers and booleans.
bool SymExprNode::is_constant() {
  return expr_->type != ValueType::kFloat && expr()->is_constant();
}

bool SymExprNode::is_symbolic() {
  return !expr()->is_constant();
}

}  // namespace torchfake
