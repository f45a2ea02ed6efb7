// Shared by the bindings of symbolic sizes: the Python classes of expressions and nodes, and conversions of numbers.
#pragma once

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>
#include <torchfake/symbolic/shape_env.h>
#include <torchfake/symbolic/sym_node.h>

namespace torchfake {

// An object that a method was called on: never null, whereas a plain holder would accept None.
template <typename Holder>
struct Self {
  Holder holder;

  operator const Holder&() const {
    return holder;
  }
  auto* operator->() const {
    return &*holder;
  }
};

}  // namespace torchfake

namespace pybind11::detail {

template <typename Holder>
struct type_caster<torchfake::Self<Holder>> {
  PYBIND11_TYPE_CASTER(torchfake::Self<Holder>, make_caster<Holder>::name);

  bool load(handle source, bool convert) {
    make_caster<Holder> inner;
    if (source.is_none() || !inner.load(source, convert)) {
      return false;
    }
    value.holder = cast_op<Holder&>(inner);
    return true;
  }

  static handle cast(const torchfake::Self<Holder>& self, return_value_policy policy, handle parent) {
    return make_caster<Holder>::cast(self.holder, policy, parent);
  }
};

}  // namespace pybind11::detail

namespace torchfake {

using NodePtr = c10::intrusive_ptr<SymExprNode>;

// An expression with the environment that it belongs to.
struct Expression {
  ShapeEnvPtr env;
  ExprPtr expr;
};

// A context manager.
struct IgnoredSymbolsScope {
  std::vector<std::unique_ptr<IgnoredSymbols>> scopes;
};

// A guard as text.
struct ReadableGuard {
  Expression expression;
  std::string op;
};

NodePtr make_node(const ShapeEnvPtr& env, ExprPtr expr);

pybind11::object from_value(const Value& value);

// Throws a TypeError for anything but a number.
Value to_value(pybind11::handle value);
// Throws ValueError for an integer that does not fit.
int64_t to_int64(pybind11::handle value);
std::map<std::string, Value> to_values(const pybind11::dict& values);

// torch.SymInt and the like, or a plain number.
pybind11::object to_number(const ShapeEnvPtr& env, ExprPtr expr);

// The expression of a number: a plain one, or a symbolic one, an expression of torchfake or one of sympy. Throws if it
// belongs to another environment.
ExprPtr to_expression(const ShapeEnvPtr& env, pybind11::handle value);

void bind_expression(pybind11::module_& module);
void bind_node(pybind11::module_& module);
void bind_shape_env(pybind11::module_& module);

}  // namespace torchfake
