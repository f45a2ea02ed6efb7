// ShapeEnv: the symbols of a trace, their hints and guards.
#include <torchfake/core/activation.h>
#include <torchfake/symbolic/errors.h>

#include "symbolic_bindings.h"

namespace torchfake {

namespace py = pybind11;

namespace {

py::object bound(int64_t end) {
  return end == Range::kNoLow || end == Range::kNoHigh ? py::cast<py::object>(py::none())
                                                       : py::cast<py::object>(py::int_(end));
}

Range to_range(const std::optional<int64_t>& low, const std::optional<int64_t>& high) {
  return {low.value_or(Range::kNoLow), high.value_or(Range::kNoHigh)};
}

std::vector<ReadableGuard> readable(const ShapeEnvPtr& env, const std::vector<Guard>& guards) {
  std::vector<ReadableGuard> result;
  result.reserve(guards.size());
  for (const Guard& guard : guards) {
    result.push_back({{env, guard.expr}, guard.op});
  }
  return result;
}

std::vector<Guard> plain(const ShapeEnvPtr& env, const py::list& guards) {
  std::vector<Guard> result;
  for (const py::handle guard : guards) {
    const auto [expr, op] = guard.cast<std::pair<py::object, std::string>>();
    result.push_back({to_expression(env, expr), op});
  }
  return result;
}

// The number of arguments of an operation; `given` if any number is valid.
size_t arity(Op op, size_t given) {
  switch (op) {
    case Op::kSum:
    case Op::kProduct:
    case Op::kMin:
    case Op::kMax:
    case Op::kAnd:
    case Op::kOr:
      return given;
    case Op::kInt:
    case Op::kBool:
    case Op::kFloat:
    case Op::kSymbol:
    case Op::kFloatFunction:
      return given + 1;  // rejected: operations of this kind are not built from arguments
    case Op::kFloor:
    case Op::kCeil:
    case Op::kTrunc:
    case Op::kRound:
    case Op::kToFloat:
    case Op::kLe:
    case Op::kEq:
    case Op::kNe:
    case Op::kIsInteger:
    case Op::kNot:
      return 1;
    case Op::kIte:
      return 3;
    default:
      return 2;
  }
}

py::list to_list(const ShapeEnvPtr& env, const std::vector<ExprPtr>& exprs) {
  py::list result;
  for (const ExprPtr expr : exprs) {
    result.append(py::cast(Expression{env, expr}));
  }
  return result;
}

// Unbacked symbols, and what a graph recorder queries about them.
template <typename Class>
void bind_unbacked_symbols(Class& env) {
  env.def_property(
         "allow_scalar_outputs",
         [](const Self<ShapeEnvPtr>& self) { return self->allow_scalar_outputs.load(); },
         [](const Self<ShapeEnvPtr>& self, bool allow) { self->allow_scalar_outputs = allow; })
      .def_property(
          "allow_dynamic_output_shape_ops",
          [](const Self<ShapeEnvPtr>& self) { return self->allow_dynamic_output_shape_ops.load(); },
          [](const Self<ShapeEnvPtr>& self, bool allow) { self->allow_dynamic_output_shape_ops = allow; })
      .def_property_readonly(
          "pending_fresh_unbacked_symbols",
          [](const Self<ShapeEnvPtr>& self) { return to_list(self, self->pending_symbols()); })
      .def("_take_pending", [](const Self<ShapeEnvPtr>& self) { return to_list(self, self->take_pending_symbols()); })
      .def(
          "ignore_fresh_unbacked_symbols",
          [](const Self<ShapeEnvPtr>&) { return std::make_unique<IgnoredSymbolsScope>(); })
      .def(
          "_rename_unbacked_to",
          [](const Self<ShapeEnvPtr>& self, py::object symbol, py::object earlier) {
            self->rename_unbacked(to_expression(self, symbol), to_expression(self, earlier));
          },
          py::arg("symbol"),
          py::arg("earlier"));
}

// What PyTorch's symbolic_shapes.py calls on a ShapeEnv.
template <typename Class>
void bind_interface_of_pytorch(Class& env) {
  env.def(
         "evaluate_sym_node",
         [](const Self<ShapeEnvPtr>& self, const Self<NodePtr>& node, bool size_oblivious, py::object fallback)
             -> py::object {
           return at_the_boundary([&]() -> py::object {
             if (node->is_int()) {
               return py::int_(self->guard_int(node->raw_expr()));
             }
             if (node->is_float()) {
               return py::float_(self->guard_float(node->raw_expr()));
             }
             const Asking asking = size_oblivious ? Asking::kSizeOblivious
                 : fallback.is_none()             ? Asking::kGuard
                 : fallback.cast<bool>()          ? Asking::kOrTrue
                                                  : Asking::kOrFalse;
             return py::bool_(self->decide(node->raw_expr(), asking));
           });
         },
         py::arg("sym_node"),
         py::arg("size_oblivious") = false,
         py::arg("fallback_value") = py::none())
      .def(
          "_maybe_evaluate_static",
          [](const Self<ShapeEnvPtr>& self, py::object expr) -> py::object {
            const ExprPtr asked = to_expression(self, expr);
            if (asked->type != ValueType::kBool) {
              const ExprPtr simple = self->simplify(asked);
              return simple->is_constant() ? from_value(simple->hint) : py::none();
            }
            if (self->decide(asked, Asking::kStatically)) {
              return py::bool_(true);
            }
            return self->decide(self->pool().logical_not(asked), Asking::kStatically)
                ? py::cast<py::object>(py::bool_(false))
                : py::none();
          },
          py::arg("expr"))
      .def(
          "simplify",
          [](const Self<ShapeEnvPtr>& self, py::object expr) {
            return Expression{self, self->simplify(to_expression(self, expr))};
          })
      .def(
          "replace",
          [](const Self<ShapeEnvPtr>& self, py::object expr) {
            return Expression{self, self->simplify(to_expression(self, expr))};
          })
      .def(
          "guarding_hint_or_throw",
          [](const Self<ShapeEnvPtr>& self, py::object expr) {
            const ExprPtr simple = self->simplify(to_expression(self, expr));
            TORCH_CHECK_VALUE(simple->has_hint, "`", self->text(simple), "` has no hint");
            return from_value(simple->hint);
          })
      .def(
          "optimization_hint",
          [](const Self<ShapeEnvPtr>& self, py::object expr, py::object fallback) -> py::object {
            const ExprPtr simple = self->simplify(to_expression(self, expr));
            TORCH_CHECK_VALUE(simple->has_hint || !fallback.is_none(), "`", self->text(simple), "` has no hint");
            return simple->has_hint ? from_value(simple->hint) : fallback;
          },
          py::arg("expr"),
          py::arg("fallback") = py::none())
      .def(
          "_constrain_range",
          [](const Self<ShapeEnvPtr>& self, py::object expr, py::object low, py::object high) {
            const auto end = [](const py::object& value) {
              return py::isinstance<py::int_>(value) ? std::optional(value.cast<int64_t>()) : std::nullopt;
            };
            self->constrain_range(to_expression(self, expr), to_range(end(low), end(high)));
          })
      .def(
          "_constrain_range_for_size",
          [](const Self<ShapeEnvPtr>& self, py::object expr, std::optional<int64_t> low, std::optional<int64_t> high) {
            const ExprPtr size = to_expression(self, expr);
            self->mark_as_size(size);
            self->constrain_range(size, to_range(low.value_or(0), high));
          },
          py::arg("expr"),
          py::arg("min") = py::none(),
          py::arg("max") = py::none())
      .def("is_unbacked_symint", [](const Self<ShapeEnvPtr>& self, py::object expr) {
        const ExprPtr symbol = to_expression(self, expr);
        return symbol->op == Op::kSymbol && !symbol->has_hint;
      });
}

}  // namespace

void bind_shape_env(py::module_& module) {
  py::class_<ShapeEnv, ShapeEnvPtr> env(
      module,
      "ShapeEnv",
      py::dynamic_attr(),
      "The symbols of one trace: their hints, the facts known about them, and the guards of operators.\n\n"
      "Args:\n"
      "    duck_shape: Whether equal sizes without a name are one symbol.\n"
      "    specialize_zero_one: Whether sizes of 0 and 1 are numbers, and symbols neither.\n"
      "    allow_scalar_outputs: Whether values that depend on data are symbols, as of `item()`.\n"
      "    allow_dynamic_output_shape_ops: Whether sizes that depend on data are symbols, as of `nonzero`.\n\n"
      "Give it to a mode (`FakeTensorMode(shape_env=ShapeEnv())`), and make sizes symbolic with the mode's\n"
      "`from_tensor(x, dynamic={0: \"batch\"})`.");
  env.def(
         py::init([](bool duck_shape, bool specialize_zero_one, bool scalar_outputs, bool dynamic_outputs) {
           activate();  // PyTorch's functions on symbolic numbers are extended to these
           auto made = std::make_shared<ShapeEnv>(ShapeEnv::Options{duck_shape, specialize_zero_one});
           made->allow_scalar_outputs = scalar_outputs;
           made->allow_dynamic_output_shape_ops = dynamic_outputs;
           return made;
         }),
         py::kw_only(),
         py::arg("duck_shape") = true,
         py::arg("specialize_zero_one") = true,
         py::arg("allow_scalar_outputs") = true,
         py::arg("allow_dynamic_output_shape_ops") = true)
      .def_property_readonly("duck_shape", [](const Self<ShapeEnvPtr>& self) { return self->options().duck_shape; })
      .def_property_readonly(
          "specialize_zero_one", [](const Self<ShapeEnvPtr>& self) { return self->options().specialize_zero_one; })
      .def(
          "create_symint",
          [](const Self<ShapeEnvPtr>& self, int64_t hint, const std::string& name, const std::string& source) {
            return to_number(self, self->create_size(hint, name, source));
          },
          py::arg("hint"),
          py::arg("name") = "",
          py::arg("source") = "")
      .def(
          "create_symfloat",
          [](const Self<ShapeEnvPtr>& self, double hint, const std::string& name, const std::string& source) {
            return to_number(self, self->create_symbol(Value::of(hint), name, source));
          },
          py::arg("hint"),
          py::arg("name") = "",
          py::arg("source") = "")
      .def(
          "create_symbool",
          [](const Self<ShapeEnvPtr>& self, bool hint, const std::string& name, const std::string& source) {
            return to_number(self, self->create_symbol(Value::of(hint), name, source));
          },
          py::arg("hint"),
          py::arg("name") = "",
          py::arg("source") = "")
      .def(
          "_create_integer",  // of any value, whereas create_symint creates sizes
          [](const Self<ShapeEnvPtr>& self, int64_t hint, const std::string& name, const std::string& source) {
            return Expression{self, self->create_symbol(Value::of(hint), name, source)};
          })
      .def(
          "create_unbacked_symint",
          [](const Self<ShapeEnvPtr>& self, const std::string& source) {
            return to_number(self, self->create_unbacked(ValueType::kInt, false, source));
          },
          py::arg("source") = "")
      .def(
          "create_unbacked_symfloat",
          [](const Self<ShapeEnvPtr>& self, const std::string& source) {
            return to_number(self, self->create_unbacked(ValueType::kFloat, false, source));
          },
          py::arg("source") = "")
      .def(
          "create_unbacked_symbool",
          [](const Self<ShapeEnvPtr>& self, const std::string& source) {
            const ExprPtr symbol = self->create_unbacked(ValueType::kInt, false, source);
            self->constrain_range(symbol, {0, 1});
            return to_number(self, self->pool().eq(symbol, self->pool().integer(1)));
          },
          py::arg("source") = "")
      .def_property_readonly("guards", [](const Self<ShapeEnvPtr>& self) { return readable(self, self->guards()); })
      .def_property_readonly(
          "runtime_assertions", [](const Self<ShapeEnvPtr>& self) { return readable(self, self->assertions()); })
      .def("format_guards", [](const Self<ShapeEnvPtr>& self) { return self->format_guards(); })
      .def(
          "guards_hold",
          [](const Self<ShapeEnvPtr>& self, const py::dict& values) { return self->guards_hold(to_values(values)); },
          py::arg("values"))
      .def(
          "evaluate",
          [](const Self<ShapeEnvPtr>& self, py::object expr, const py::dict& values) {
            return from_value(self->evaluate(self->simplify(to_expression(self, expr)), to_values(values)));
          },
          py::arg("expr"),
          py::arg("values"))
      .def(
          "bounds",
          [](const Self<ShapeEnvPtr>& self, py::object expr) {
            const ExprPtr asked = to_expression(self, expr);
            TORCH_CHECK_TYPE(asked->type == ValueType::kInt, "bounds: expected an integer");
            const Range range = self->range(asked);
            return py::make_tuple(bound(range.low), bound(range.high));
          },
          py::arg("expr"))
      .def(
          "constrain_range",
          [](const Self<ShapeEnvPtr>& self,
             py::object expr,
             const std::optional<int64_t>& low,
             const std::optional<int64_t>& high) {
            self->constrain_range(to_expression(self, expr), to_range(low, high));
          },
          py::arg("expr"),
          py::arg("min") = py::none(),
          py::arg("max") = py::none())
      .def_property_readonly(
          "symbols",
          [](const Self<ShapeEnvPtr>& self) {
            py::dict result;
            const std::vector<SymbolInfo> symbols = self->symbols();
            for (size_t i = 0; i < symbols.size(); ++i) {
              if (!symbols[i].is_internal) {
                result[py::str(symbols[i].name)] = to_number(self, self->pool().symbol(static_cast<uint32_t>(i)));
              }
            }
            return result;
          })
      .def_property_readonly(
          "sources",
          [](const Self<ShapeEnvPtr>& self) {
            py::dict result;
            for (const SymbolInfo& symbol : self->symbols()) {
              if (!symbol.is_internal) {
                result[py::str(symbol.name)] = symbol.source;
              }
            }
            return result;
          })
      .def(
          "__getstate__",
          [](const Self<ShapeEnvPtr>& self) {
            return py::module_::import("torchfake._symbolic").attr("state_of")(self);
          })
      .def(
          "__reduce__",
          [](const Self<ShapeEnvPtr>& self) {
            const py::module_ loader = py::module_::import("torchfake._symbolic");
            return py::make_tuple(loader.attr("load_env"), py::make_tuple(loader.attr("state_of")(self)));
          })
      // For pickling: (name, source, low, high, is_backed, is_size, type, hint) of each symbol.
      .def(
          "_symbol_rows",
          [](const Self<ShapeEnvPtr>& self) {
            py::list rows;
            const std::vector<SymbolInfo> symbols = self->symbols();
            for (size_t i = 0; i < symbols.size(); ++i) {
              const SymbolInfo& info = symbols[i];
              const ExprPtr symbol = self->pool().symbol(static_cast<uint32_t>(i));
              if (info.is_internal) {
                continue;  // restored together with its guard
              }
              rows.append(
                  py::make_tuple(
                      info.name,
                      info.source,
                      info.range.low,
                      info.range.high,
                      info.is_backed,
                      info.is_size,
                      static_cast<int>(symbol->type),
                      symbol->has_hint ? from_value(symbol->hint) : py::none()));
            }
            return rows;
          })
      .def(
          "_restore_symbols",
          [](const Self<ShapeEnvPtr>& self, const py::list& rows) {
            std::vector<SymbolInfo> symbols;
            std::vector<std::optional<Value>> hints;
            for (const py::handle row : rows) {
              constexpr size_t kColumns = 8;  // as returned by _symbol_rows
              TORCH_CHECK_TYPE(
                  py::isinstance<py::tuple>(row) && py::len(row) == kColumns,
                  "_restore_symbols: a row is a tuple of ",
                  kColumns);
              const auto tuple = py::reinterpret_borrow<py::tuple>(row);
              SymbolInfo info;
              info.name = tuple[0].cast<std::string>();
              info.source = tuple[1].cast<std::string>();
              info.range = {tuple[2].cast<int64_t>(), tuple[3].cast<int64_t>()};
              info.is_backed = tuple[4].cast<bool>();
              info.is_size = tuple[5].cast<bool>();
              symbols.push_back(std::move(info));
              hints.push_back(tuple[7].is_none() ? std::nullopt : std::optional(to_value(tuple[7])));
            }
            self->restore(symbols, hints);
          })
      .def(
          "_restore_facts",
          [](const Self<ShapeEnvPtr>& self, const py::list& guards, const py::list& assertions) {
            self->restore_facts(plain(self, guards), plain(self, assertions));
          })
      // Builds an expression, for unpickling and for tests.
      .def(
          "_build",
          [](const Self<ShapeEnvPtr>& self, const std::string& op, const py::list& args, py::object number) {
            std::vector<ExprPtr> exprs;
            for (const py::handle arg : args) {
              exprs.push_back(to_expression(self, arg));
            }
            ExprPool& pool = self->pool();
            if (op == "constant") {
              return Expression{self, pool.constant(to_value(number))};
            }
            if (op == "float_function") {
              for (int i = 0; i <= static_cast<int>(FloatFunction::kLog2); ++i) {
                if (number.cast<std::string>() == float_function_name(static_cast<FloatFunction>(i))) {
                  return Expression{self, pool.float_function(static_cast<FloatFunction>(i), exprs.at(0))};
                }
              }
            }
            for (int i = 0; i <= static_cast<int>(Op::kIte); ++i) {
              if (op == op_name(static_cast<Op>(i))) {
                Expr shape;
                shape.op = static_cast<Op>(i);
                shape.type = shape.op < Op::kToFloat ? ValueType::kInt
                    : shape.op < Op::kLe             ? ValueType::kFloat
                                                     : ValueType::kBool;
                if (shape.op == Op::kSum || shape.op == Op::kProduct) {
                  const auto [constant, coefficients] = number.cast<std::pair<int64_t, std::vector<int64_t>>>();
                  shape.number = constant;
                  shape.coefficients.append(coefficients.begin(), coefficients.end());
                  TORCH_CHECK_VALUE(exprs.size() == coefficients.size(), "_build: one coefficient for each argument");
                  TORCH_CHECK_VALUE(
                      shape.op == Op::kSum ||
                          std::all_of(
                              coefficients.begin(), coefficients.end(), [](int64_t p) { return p >= 0 && p <= 64; }),
                      "_build: powers from 0 to 64");
                }
                TORCH_CHECK_VALUE(exprs.size() == arity(shape.op, exprs.size()), "_build: wrong number of arguments");
                TORCH_CHECK_VALUE(!exprs.empty(), "_build: no arguments");
                return Expression{self, pool.rebuild(shape, exprs)};
              }
            }
            TORCH_CHECK_VALUE(false, "_build: there is no operation '", op, "'");
          },
          py::arg("op"),
          py::arg("args"),
          py::arg("number") = py::none())
      .def("_number", [](const Self<ShapeEnvPtr>& self, py::object expr) {
        return to_number(self, to_expression(self, expr));
      });
  bind_interface_of_pytorch(env);
  bind_unbacked_symbols(env);
}

}  // namespace torchfake
