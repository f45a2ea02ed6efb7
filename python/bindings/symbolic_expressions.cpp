// Symbolic expressions and guards, and conversions from and to Python's numbers.
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/utils/python_symnode.h>
#include <torchfake/symbolic/errors.h>

#include "bindings.h"
#include "symbolic_bindings.h"

namespace torchfake {

namespace py = pybind11;

NodePtr make_node(const ShapeEnvPtr& env, ExprPtr expr) {
  return c10::make_intrusive<SymExprNode>(env, expr);
}

py::object from_value(const Value& value) {
  return value.type == ValueType::kInt ? py::cast<py::object>(py::int_(value.integer))
      : value.type == ValueType::kBool ? py::cast<py::object>(py::bool_(value.integer != 0))
                                       : py::cast<py::object>(py::float_(value.real));
}

Value to_value(py::handle value) {
  if (py::isinstance<py::bool_>(value)) {
    return Value::of(value.cast<bool>());
  }
  if (py::isinstance<py::float_>(value)) {
    return Value::of(value.cast<double>());
  }
  TORCH_CHECK_TYPE(
      PyIndex_Check(value.ptr()) != 0,
      "ShapeEnv: expected a number, or a symbolic number of this ShapeEnv, got ",
      Py_TYPE(value.ptr())->tp_name);
  return Value::of(to_int64(value));
}

int64_t to_int64(py::handle value) {
  int overflow = 0;
  const py::object number = py::reinterpret_steal<py::object>(PyNumber_Index(value.ptr()));
  if (!number) {
    throw py::error_already_set();
  }
  const int64_t result = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
  TORCH_CHECK_VALUE(overflow == 0, "ShapeEnv: ", std::string(py::str(value)), " does not fit into 64 bits");
  return result;
}

std::map<std::string, Value> to_values(const py::dict& values) {
  std::map<std::string, Value> result;
  for (const auto& [name, value] : values) {
    TORCH_CHECK_TYPE(
        py::isinstance<py::str>(name),
        "ShapeEnv: values are given by the names of symbols, got a key of type ",
        Py_TYPE(name.ptr())->tp_name);
    result.emplace(py::cast<std::string>(name), to_value(value));
  }
  return result;
}

py::object to_number(const ShapeEnvPtr& env, ExprPtr expr) {
  if (expr->is_constant()) {
    return from_value(expr->hint);
  }
  const py::object node = py::cast(make_node(env, expr));
  const py::handle type = expr->type == ValueType::kInt ? torch::get_symint_class()
      : expr->type == ValueType::kBool                  ? torch::get_symbool_class()
                                                        : torch::get_symfloat_class();
  return type(node);
}

ExprPtr to_expression(const ShapeEnvPtr& env, py::handle value) {
  if (py::isinstance<Expression>(value)) {
    const auto& expression = value.cast<const Expression&>();
    TORCH_CHECK_VALUE(expression.env == env, "ShapeEnv: the expression belongs to another ShapeEnv");
    return expression.expr;
  }
  py::object node = py::isinstance<SymExprNode>(value) ? py::reinterpret_borrow<py::object>(value)
                                                       : py::getattr(value, "node", py::none());
  if (py::isinstance<SymExprNode>(node)) {
    const NodePtr symbolic = node.cast<NodePtr>();
    if (symbolic->env() != env) {
      at_the_boundary([&] {
        raise_dynamic_shapes("", c10::str("the symbolic number ", symbolic->str(), " belongs to another ShapeEnv."));
      });
    }
    return symbolic->raw_expr();
  }
  TORCH_CHECK_TYPE(
      node.is_none(), "ShapeEnv: expected a number, or a symbolic number of this ShapeEnv, got one of another kind");
  if (py::hasattr(value, "free_symbols")) {
    return to_expression(env, py::module_::import("torchfake._symbolic").attr("from_sympy")(env, value));
  }
  return env->pool().constant(to_value(value));
}

void bind_expression(py::module_& module) {
  py::class_<Expression>(module, "Expr")
      .def_property_readonly("op", [](const Expression& self) { return op_name(self.expr->op); })
      .def_property_readonly(
          "args",
          [](const Expression& self) {
            py::tuple args(self.expr->args.size());
            for (size_t i = 0; i < self.expr->args.size(); ++i) {
              args[i] = py::cast(Expression{self.env, self.expr->args[i]});
            }
            return args;
          })
      .def_property_readonly(
          "coefficients",
          [](const Expression& self) {
            return std::vector<int64_t>(self.expr->coefficients.begin(), self.expr->coefficients.end());
          })
      .def_property_readonly("number", [](const Expression& self) { return self.expr->number; })
      .def_property_readonly("real", [](const Expression& self) { return self.expr->real; })
      .def_property_readonly(
          "function",
          [](const Expression& self) { return float_function_name(static_cast<FloatFunction>(self.expr->number)); })
      .def_property_readonly("shape_env", [](const Expression& self) { return self.env; })
      .def_property_readonly(
          "free_symbols",
          [](const Expression& self) {
            py::set symbols;
            for (const uint32_t index : self.expr->symbols) {
              symbols.add(py::cast(Expression{self.env, self.env->pool().symbol(index)}));
            }
            return symbols;
          })
      // The attributes of a sympy expression that PyTorch's Python code uses.
      .def_property_readonly(
          "is_number",
          [](const Expression& self) { return self.expr->is_constant() && self.expr->type != ValueType::kBool; })
      .def_property_readonly("is_Boolean", [](const Expression& self) { return self.expr->op == Op::kBool; })
      .def_property_readonly("is_Symbol", [](const Expression& self) { return self.expr->op == Op::kSymbol; })
      .def_property_readonly("is_symbol", [](const Expression& self) { return self.expr->op == Op::kSymbol; })
      .def_property_readonly("name", [](const Expression& self) { return self.env->text(self.expr); })
      .def("__str__", [](const Expression& self) { return self.env->text(self.expr); })
      .def("__repr__", [](const Expression& self) { return self.env->text(self.expr); })
      // A constant is equal to the number, as sympy's are.
      .def(
          "__hash__",
          [](const Expression& self) {
            return self.expr->is_constant() ? py::hash(from_value(self.expr->hint))
                                            : reinterpret_cast<intptr_t>(self.expr) >> 4;
          })
      .def(
          "__eq__",
          [](const Expression& self, py::handle other) {
            if (self.expr->is_constant() && (PyLong_Check(other.ptr()) || PyFloat_Check(other.ptr()))) {
              return from_value(self.expr->hint).equal(other);
            }
            return py::isinstance<Expression>(other) && other.cast<const Expression&>().expr == self.expr;
          })
      .def(
          "__int__",
          [](const Expression& self) {
            TORCH_CHECK_TYPE(self.expr->op == Op::kInt, "int(): `", self.env->text(self.expr), "` is not a number");
            return self.expr->number;
          })
      .def(
          "__bool__",
          [](const Expression& self) {
            TORCH_CHECK_TYPE(self.expr->is_constant(), "bool(): `", self.env->text(self.expr), "` is not a constant");
            return self.expr->op == Op::kFloat ? self.expr->real != 0 : self.expr->number != 0;
          })
      .def("_sympy_", [](const Expression& self) {
        return py::module_::import("torchfake._symbolic").attr("to_sympy")(self);
      });
  py::class_<ReadableGuard>(module, "Guard")
      .def_property_readonly("expr", [](const ReadableGuard& self) { return self.expression; })
      .def_property_readonly("op", [](const ReadableGuard& self) { return self.op; })
      .def("__str__", [](const ReadableGuard& self) { return self.expression.env->text(self.expression.expr); })
      .def("__repr__", [](const ReadableGuard& self) {
        return self.expression.env->text(self.expression.expr) + (self.op.empty() ? "" : "  # " + self.op);
      });
}

}  // namespace torchfake
