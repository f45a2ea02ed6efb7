// Symbolic sizes: ShapeEnv, its expressions, and the nodes behind torch.SymInt, SymFloat and SymBool.
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/utils/python_symnode.h>
#include <torchfake/convert/symbolic_sizes.h>
#include <torchfake/core/activation.h>
#include <torchfake/core/fake_tensor_impl.h>
#include <torchfake/symbolic/errors.h>
#include <torchfake/symbolic/mode_env.h>

#include "bindings.h"

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

namespace {

namespace py = pybind11;

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
  return Value::of(value.cast<int64_t>());
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

// torch.SymInt and the like, or a plain number.
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

c10::SymNodeImpl* unwrap_python_node(c10::SymNodeImpl* node) {
  auto* wrapper = dynamic_cast<torch::impl::PythonSymNodeImpl*>(node);
  if (wrapper == nullptr || Py_IsInitialized() == 0) {
    return nullptr;
  }
  py::gil_scoped_acquire gil;
  const py::handle inside = wrapper->getPyObj();
  return py::isinstance<SymExprNode>(inside) ? inside.cast<SymExprNode*>() : nullptr;
}

c10::SymNode wrap_node(const c10::SymNode& node) {
  if (Py_IsInitialized() == 0) {
    return node;
  }
  py::gil_scoped_acquire gil;
  return c10::make_intrusive<torch::impl::PythonSymNodeImpl>(py::cast(node));
}

// For one of PyTorch's own nodes.
std::optional<NumberFor> number_for_python_node(c10::SymNodeImpl* node) {
  auto* wrapper = dynamic_cast<torch::impl::PythonSymNodeImpl*>(node);
  if (wrapper == nullptr || Py_IsInitialized() == 0) {
    return std::nullopt;
  }
  py::gil_scoped_acquire gil;
  const auto inside = py::reinterpret_borrow<py::object>(wrapper->getPyObj());
  const py::object hint = inside.attr("hint");
  const py::object value =
      hint.is_none() ? py::module_::import("torchfake._symbolic").attr("example_of")(inside) : hint;
  if (value.is_none()) {
    return std::nullopt;
  }
  const Value number = node->is_float() ? Value::of(value.cast<double>())
      : node->is_bool()                 ? Value::of(value.cast<bool>())
                                        : Value::of(value.cast<int64_t>());
  return NumberFor{number, !hint.is_none()};
}

// The symbols of an environment of PyTorch's own.
class PythonSymbols final : public SymbolSource {
 public:
  explicit PythonSymbols(py::object env) : env_(std::make_shared<py::object>(std::move(env))) {}
  PythonSymbols(const PythonSymbols&) = delete;
  PythonSymbols& operator=(const PythonSymbols&) = delete;
  PythonSymbols(PythonSymbols&&) = delete;
  PythonSymbols& operator=(PythonSymbols&&) = delete;
  ~PythonSymbols() override {
    if (Py_IsInitialized() != 0) {
      py::gil_scoped_acquire gil;
      env_.reset();
    }
  }

  bool gives_sizes() override {
    return asked<bool>("gives_sizes");
  }
  bool gives_values() override {
    return asked<bool>("gives_values");
  }
  c10::SymInt new_size(int64_t low, std::optional<int64_t> high) override {
    return asked<c10::SymInt>("new_size", low, high);
  }
  c10::Scalar new_value(ValueType type) override {
    switch (type) {
      case ValueType::kInt:
        return asked<c10::SymInt>("new_integer");
      case ValueType::kFloat:
        return asked<c10::SymFloat>("new_float");
      default:
        return asked<c10::SymBool>("new_boolean");
    }
  }

  py::object env() const {
    return *env_;
  }

 private:
  // Calls a function of torchfake._symbolic with the environment.
  template <typename Result, typename... Args>
  Result asked(const char* question, const Args&... args) const {
    py::gil_scoped_acquire gil;
    try {
      return py::cast<Result>(py::module_::import("torchfake._symbolic").attr(question)(*env_, args...));
    } catch (py::error_already_set& error) {
      error.restore();
      python_error carrier;
      carrier.persist();
      throw carrier;
    }
  }

  std::shared_ptr<py::object> env_;
};

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
            TORCH_CHECK_NOT_IMPLEMENTED(!digits, "round: of a symbolic number, to no digits alone");
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
      .def_property_readonly("hint", hint)
      .def_property_readonly("_hint", hint)
      .def(
          "require_hint",
          [hint](const Self<NodePtr>& self, const std::optional<int64_t>& fallback) -> py::object {
            const py::object value = hint(self);
            if (!value.is_none()) {
              return value;
            }
            TORCH_CHECK_VALUE(fallback, "`", self->str(), "` has no hint: its value is known to data alone");
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
      return given + 1;  // never valid: not built this way
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

void bind_shape_env(py::module_& module) {
  py::class_<ShapeEnv, ShapeEnvPtr> env(
      module,
      "ShapeEnv",
      py::dynamic_attr(),
      "The symbols of one trace: their hints, what is known of them, and the guards that operators asked for.\n\n"
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
          "_create_integer",  // of any value, where create_symint makes sizes
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
            TORCH_CHECK_TYPE(asked->type == ValueType::kInt, "bounds: of integers alone");
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

}  // namespace

void bind_symbolic(py::module_& module) {
  bind_expression(module);
  bind_node(module);
  bind_shape_env(module);
  set_node_unwrapper(&unwrap_python_node);
  set_node_wrapper(&wrap_node);
  set_foreign_numbers(&number_for_python_node);
  py::class_<IgnoredSymbolsScope>(module, "IgnoredSymbolsScope")
      .def("__enter__", [](IgnoredSymbolsScope& self) { self.scopes.push_back(std::make_unique<IgnoredSymbols>()); })
      .def("__exit__", [](IgnoredSymbolsScope& self, const py::args&) {
        TORCH_CHECK(!self.scopes.empty(), "ignore_fresh_unbacked_symbols: left without having been entered");
        self.scopes.pop_back();
      });
  module.def(
      "set_shape_env",
      [](ModePtr mode, ShapeEnvPtr env) { set_shape_env(mode, std::move(env)); },
      py::arg("mode").none(false),
      py::arg("env").none(false));
  module.def("shape_env_of", [](const ModeState& mode) { return shape_env_of(mode); }, py::arg("mode"));
  module.def(
      "set_symbol_source",
      [](const ModePtr& mode, py::object env) {
        activate();
        set_symbol_source(mode, std::make_shared<PythonSymbols>(std::move(env)));
      },
      py::arg("mode").none(false),
      py::arg("env").none(false));
  module.def(
      "symbol_source_of",
      [](const ModeState& mode) -> py::object {
        const auto source = std::dynamic_pointer_cast<PythonSymbols>(symbol_source_of(mode));
        return source == nullptr ? py::none() : source->env();
      },
      py::arg("mode"));
  module.def(
      "set_symbolic_geometry",
      [](const at::Tensor& fake,
         const std::vector<c10::SymInt>& sizes,
         const std::vector<c10::SymInt>& strides,
         const c10::SymInt& storage_offset) {
        FakeTensorImpl* impl = as_fake(fake);
        TORCH_CHECK_VALUE(
            impl != nullptr && impl->dim() == static_cast<int64_t>(sizes.size()) && sizes.size() == strides.size(),
            "set_symbolic_geometry: expected a fake, and a size and a stride for each of its dimensions");
        impl->set_sizes_and_strides(sizes, strides, storage_offset);
      },
      py::arg("fake"),
      py::arg("sizes"),
      py::arg("strides"),
      py::arg("storage_offset"));
  module.def(
      "make_symbolic",
      [](const at::Tensor& fake,
         const ShapeEnvPtr& env,
         const std::map<int64_t, std::string>& names,
         const std::string& source) { at_the_boundary([&] { make_symbolic(fake, env, names, source); }); },
      py::arg("fake"),
      py::arg("env").none(false),
      py::arg("names"),
      py::arg("source") = "");
}

}  // namespace torchfake
