// The nodes behind torch.SymInt, SymFloat and SymBool.
#include <torchfake/core/errors.h>

#include "symbolic_bindings.h"

namespace torchfake {

namespace py = pybind11;

namespace {

template <typename Class>
void bind_more_arithmetic(Class& node) {
  const auto to_int = [&](const char* name, Op op) {
    node.def(name, [op](const Self<NodePtr>& self) { return self->to_int(op); });
  };
  to_int("trunc", Op::kTrunc);
  to_int("sym_int", Op::kTrunc);
  const auto bitwise = [&](const char* name, Op op) {
    node.def(
        name, [op](const Self<NodePtr>& self, const Self<c10::SymNode>& other) { return self->bitwise(op, other); });
  };
  bitwise("bitwise_and", Op::kBitAnd);
  bitwise("bitwise_or", Op::kBitOr);
  bitwise("bitwise_xor", Op::kBitXor);
  bitwise("lshift", Op::kShiftLeft);
  bitwise("rshift", Op::kShiftRight);
  for (auto function = static_cast<int>(FloatFunction::kSqrt); function <= static_cast<int>(FloatFunction::kLog2);
       ++function) {
    const auto which = static_cast<FloatFunction>(function);
    node.def((std::string("sym_") + float_function_name(which)).c_str(), [which](const Self<NodePtr>& self) {
      return self->float_function(which);
    });
  }
  node.def(
          "round",
          [](const Self<NodePtr>& self, const std::optional<int64_t>& digits) {
            TORCH_CHECK_NOT_IMPLEMENTED(!digits, "round: rounding a symbolic number to digits is not supported");
            return self->to_int(Op::kRound);
          },
          py::arg("ndigits") = py::none())
      .def("pos", [](const Self<NodePtr>& self) { return self.holder; })
      .def(
          "abs",
          [](const Self<NodePtr>& self) {
            if (self->is_float()) {
              return self->float_function(FloatFunction::kAbs);
            }
            return self->sym_max(self->neg());
          })
      .def(
          "is_integer",
          [](const Self<NodePtr>& self) {
            ExprPool& pool = self->env()->pool();
            return self->wrap(self->is_int() ? pool.boolean(true) : pool.is_integer(self->raw_expr()));
          })
      .def(
          "sym_sum",
          [](const Self<NodePtr>& self, const std::vector<Self<c10::SymNode>>& terms) {
            return at_the_boundary([&] {
              c10::SmallVector<ExprPtr, 4> exprs;
              for (const Self<c10::SymNode>& term : terms) {
                exprs.push_back(self->unwrap(term));
              }
              return self->wrap(self->env()->pool().sum(exprs));
            });
          })
      .def(
          "sym_ite",
          [](const Self<NodePtr>& self, const Self<c10::SymNode>& then, const Self<c10::SymNode>& otherwise) {
            return self->sym_ite(then, otherwise);
          });
}

}  // namespace

void bind_node(py::module_& module) {
  py::class_<SymExprNode, c10::SymNodeImpl, NodePtr> node(
      module,
      "SymNode",
      "What is behind a torch.SymInt, SymFloat or SymBool of a torchfake.ShapeEnv: `n.node`.\n\n"
      "Args:\n"
      "    expr: An expression of the environment, or of sympy over its symbols.\n"
      "    shape_env: The environment. PyTorch's further arguments (pytype, hint) follow from the expression.");
  bind_more_arithmetic(node);
  const auto hint = [](const Self<NodePtr>& self) -> py::object {
    const std::optional<Value> value = self->hint();
    return value ? from_value(*value) : py::none();
  };
  node.def(
          py::init([](py::object expr, const ShapeEnvPtr& env, const py::args&, const py::kwargs&) {
            return make_node(env, to_expression(env, expr));
          }),
          py::arg("expr"),
          py::arg("shape_env").none(false))
      .def_property_readonly("shape_env", [](const Self<NodePtr>& self) { return self->env(); })
      .def_property_readonly("expr", [](const Self<NodePtr>& self) { return Expression{self->env(), self->expr()}; })
      .def_property_readonly(
          "_expr", [](const Self<NodePtr>& self) { return Expression{self->env(), self->raw_expr()}; })
      .def(
          "wrap_int",
          [](const Self<NodePtr>& self, const py::int_& number) { return self->wrap_int(to_int64(number)); },
          py::arg("num"))
      .def_property_readonly("hint", hint)
      .def_property_readonly("_hint", hint)
      .def(
          "require_hint",
          [hint](const Self<NodePtr>& self, const std::optional<int64_t>& fallback) -> py::object {
            const py::object value = hint(self);
            if (!value.is_none()) {
              return value;
            }
            TORCH_CHECK_VALUE(fallback, "`", self->str(), "` has no hint: its value depends on data");
            return py::int_(*fallback);
          },
          py::arg("fallback") = py::none())
      .def_property_readonly(
          "constant",
          [](const Self<NodePtr>& self) -> py::object {
            return self->expr()->is_constant() ? from_value(self->expr()->hint) : py::none();
          })
      .def_property_readonly(
          "pytype",
          [](const Self<NodePtr>& self) -> py::object {
            return py::module_::import("builtins").attr(self->is_int() ? "int" : self->is_bool() ? "bool" : "float");
          })
      .def("maybe_as_int", [](const Self<NodePtr>& self) { return self->maybe_as_int(); })
      .def(
          "maybe_as_float",
          [](const Self<NodePtr>& self) {
            const ExprPtr expr = self->expr();
            return expr->op == Op::kFloat ? std::optional(expr->real) : std::nullopt;
          })
      .def(
          "maybe_as_bool",
          [](const Self<NodePtr>& self) {
            const ExprPtr expr = self->expr();
            return expr->op == Op::kBool ? std::optional(expr->number != 0) : std::nullopt;
          })
      .def(
          "statically_known_true",
          [](const Self<NodePtr>& self, const char*, int64_t) { return self->statically_known_true("", 0); })
      .def("__reduce__", [](const Self<NodePtr>& self) {
        const py::module_ loader = py::module_::import("torchfake._symbolic");
        return py::make_tuple(
            loader.attr("load_node"),
            py::make_tuple(self->env(), loader.attr("dump")(Expression{self->env(), self->raw_expr()})));
      });
}

}  // namespace torchfake
