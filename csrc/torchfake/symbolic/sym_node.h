// Symbolic expressions as the nodes of PyTorch's SymInt, SymFloat and SymBool.
#pragma once

#include <c10/core/SymBool.h>
#include <c10/core/SymFloat.h>
#include <c10/core/SymInt.h>
#include <c10/core/SymNodeImpl.h>

#include <torchfake/symbolic/shape_env.h>

namespace torchfake {

using ShapeEnvPtr = std::shared_ptr<ShapeEnv>;

// An expression of an environment. Immutable; operations create new nodes. Every operation between two nodes throws
// DynamicShapesError if they belong to different environments, or if the other one is PyTorch's own.
class SymExprNode final : public c10::SymNodeImpl {
 public:
  SymExprNode(ShapeEnvPtr env, ExprPtr expr) : env_(std::move(env)), expr_(expr) {}

  const ShapeEnvPtr& env() const {
    return env_;
  }
  // The expression as constructed.
  ExprPtr raw_expr() const {
    return expr_;
  }
  // The expression, simplified by known equalities.
  ExprPtr expr() const {
    return env_->simplify(expr_);
  }
  std::optional<Value> hint() const;

  bool is_int() override;
  bool is_bool() override;
  bool is_float() override;
  c10::SymNode add(const c10::SymNode& other) override;
  c10::SymNode sub(const c10::SymNode& other) override;
  c10::SymNode mul(const c10::SymNode& other) override;
  c10::SymNode truediv(const c10::SymNode& other) override;
  c10::SymNode pow(const c10::SymNode& other) override;
  c10::SymNode floordiv(const c10::SymNode& other) override;
  c10::SymNode mod(const c10::SymNode& other) override;
  c10::SymNode eq(const c10::SymNode& other) override;
  c10::SymNode ne(const c10::SymNode& other) override;
  c10::SymNode gt(const c10::SymNode& other) override;
  c10::SymNode lt(const c10::SymNode& other) override;
  c10::SymNode le(const c10::SymNode& other) override;
  c10::SymNode ge(const c10::SymNode& other) override;
  c10::SymNode ceil() override;
  c10::SymNode floor() override;
  c10::SymNode neg() override;
  c10::SymNode sym_min(const c10::SymNode& other) override;
  c10::SymNode sym_max(const c10::SymNode& other) override;
  c10::SymNode sym_or(const c10::SymNode& other) override;
  c10::SymNode sym_and(const c10::SymNode& other) override;
  c10::SymNode sym_not() override;
  c10::SymNode sym_ite(const c10::SymNode& then, const c10::SymNode& otherwise) override;
  c10::SymNode is_contiguous(c10::ArrayRef<c10::SymNode> sizes, c10::ArrayRef<c10::SymNode> strides) override;
  c10::SymNode is_channels_last_contiguous_2d(c10::ArrayRef<c10::SymNode> sizes, c10::ArrayRef<c10::SymNode> strides)
      override;
  c10::SymNode is_channels_last_contiguous_3d(c10::ArrayRef<c10::SymNode> sizes, c10::ArrayRef<c10::SymNode> strides)
      override;
  c10::SymNode is_channels_last_strides_2d(c10::ArrayRef<c10::SymNode> sizes, c10::ArrayRef<c10::SymNode> strides)
      override;
  c10::SymNode is_channels_last_strides_3d(c10::ArrayRef<c10::SymNode> sizes, c10::ArrayRef<c10::SymNode> strides)
      override;
  c10::SymNode is_non_overlapping_and_dense(c10::ArrayRef<c10::SymNode> sizes, c10::ArrayRef<c10::SymNode> strides)
      override;
  c10::SymNode clone() override;
  c10::SymNode sym_float() override;
  c10::SymNode wrap_int(int64_t value) override;
  c10::SymNode wrap_float(double value) override;
  c10::SymNode wrap_bool(bool value) override;
  int64_t guard_int(const char* file, int64_t line) override;
  bool guard_bool(const char* file, int64_t line) override;
  double guard_float(const char* file, int64_t line) override;
  bool guard_size_oblivious(const char* file, int64_t line) override;
  bool guard_or_false(const char* file, int64_t line) override;
  bool guard_or_true(const char* file, int64_t line) override;
  bool statically_known_true(const char* file, int64_t line) override;
  bool expect_true(const char* file, int64_t line) override;
  int64_t int_() override;
  bool bool_() override;
  bool has_hint() override;
  std::string str() override;
  std::optional<int64_t> constant_int() override;
  std::optional<bool> constant_bool() override;
  std::optional<int64_t> maybe_as_int() override;
  bool is_constant() override;
  bool is_symbolic() override;

  // Operations that only the Python nodes have.
  c10::SymNode wrap(ExprPtr expr) const;
  ExprPtr unwrap(const c10::SymNode& other) const;
  c10::SymNode to_int(Op op) const;  // kFloor, kCeil, kTrunc, kRound; an integer is returned unchanged
  c10::SymNode float_function(FloatFunction function) const;
  c10::SymNode bitwise(Op op, const c10::SymNode& other) const;

 private:
  struct Pair {
    ExprPtr a;
    ExprPtr b;
    bool is_float;
  };
  Pair promote(const c10::SymNode& other) const;
  ExprPool& pool() const {
    return env_->pool();
  }
  bool decide(Asking asking) const;
  c10::SymNode extremum(const c10::SymNode& other, bool is_max) const;
  c10::SymNode is_contiguous_in_order(
      c10::ArrayRef<c10::SymNode> sizes,
      c10::ArrayRef<c10::SymNode> strides,
      c10::ArrayRef<int64_t> order) const;

  const ShapeEnvPtr env_;
  const ExprPtr expr_;
};

// The node of a torchfake symbolic number, or null. Looks through the wrapper that PyTorch's binding adds to floats and
// booleans that come from Python.
SymExprNode* as_expr_node(const c10::SymNode& node);
SymExprNode* as_expr_node(c10::SymNodeImpl* node);

// Set once by the Python binding: returns the node inside such a wrapper, or null.
using NodeUnwrapper = c10::SymNodeImpl* (*)(c10::SymNodeImpl* node);
void set_node_unwrapper(NodeUnwrapper unwrap);

// A concrete value for a symbolic number: its hint, or without one an example value (ShapeEnv::example). Nothing for an
// unknown kind of node.
struct NumberFor {
  Value value;
  bool is_hint = false;
};
std::optional<NumberFor> number_for(c10::SymNodeImpl* node);

// Set once by the Python binding: the same for PyTorch's own nodes.
using ForeignNumber = std::optional<NumberFor> (*)(c10::SymNodeImpl* node);
void set_foreign_numbers(ForeignNumber finder);

// Set once by the Python binding. PyTorch passes symbolic floats and booleans to Python only inside its own wrapper, so
// those that operators return are wrapped.
using NodeWrapper = c10::SymNode (*)(const c10::SymNode& node);
void set_node_wrapper(NodeWrapper wrap);

// Returns a plain number if the expression is constant.
c10::SymInt to_sym_int(const ShapeEnvPtr& env, ExprPtr expr);
c10::SymFloat to_sym_float(const ShapeEnvPtr& env, ExprPtr expr);
c10::SymBool to_sym_bool(const ShapeEnvPtr& env, ExprPtr expr);

// The expression of a size in `env`. Throws DynamicShapesError for a symbol of another environment.
ExprPtr to_expr(const ShapeEnvPtr& env, const c10::SymInt& value);

// Whether two sizes are known to be equal, without a guard.
bool statically_equal(const c10::SymInt& a, const c10::SymInt& b);

}  // namespace torchfake
