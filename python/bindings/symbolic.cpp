// Symbolic sizes of fakes and modes, and PyTorch's own nodes and environments.
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/utils/python_symnode.h>
#include <torchfake/convert/symbolic_sizes.h>
#include <torchfake/core/activation.h>
#include <torchfake/core/errors.h>
#include <torchfake/core/fake_tensor_impl.h>
#include <torchfake/symbolic/mode_env.h>

#include "bindings.h"
#include "symbolic_bindings.h"

namespace torchfake {

namespace py = pybind11;

namespace {

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

// Symbols of one of PyTorch's own environments.
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
