// Symbolic sizes in the C++ API.
#include <torchfake/torchfake.h>

#include <torchfake/convert/symbolic_sizes.h>
#include <torchfake/core/to_fake.h>
#include <torchfake/symbolic/mode_env.h>

namespace torchfake {

namespace {

std::map<std::string, Value> to_values(const std::map<std::string, int64_t>& numbers) {
  std::map<std::string, Value> values;
  for (const auto& [name, number] : numbers) {
    values.emplace(name, Value::of(number));
  }
  return values;
}

}  // namespace

SymbolicShapes::SymbolicShapes(const FakeMode& mode) : env_(std::make_shared<ShapeEnv>()) {
  TORCH_CHECK_VALUE(
      symbol_source_of(*mode.state()) == nullptr,
      "SymbolicShapes: the mode has symbols already; a mode has one of these");
  set_shape_env(mode.state(), env_);
}

std::vector<std::string> SymbolicShapes::guards() const {
  std::vector<std::string> texts;
  for (const Guard& guard : env_->guards()) {
    texts.push_back(env_->text(guard.expr));
  }
  return texts;
}

bool SymbolicShapes::guards_hold(const std::map<std::string, int64_t>& values) const {
  return env_->guards_hold(to_values(values));
}

int64_t SymbolicShapes::evaluate(const c10::SymInt& size, const std::map<std::string, int64_t>& values) const {
  return env_->evaluate(to_expr(env_, size), to_values(values)).integer;
}

at::Tensor to_fake(const at::Tensor& tensor, const std::map<int64_t, std::string>& dynamic) {
  const ModePtr mode = current_mode();
  TORCH_CHECK_VALUE(mode != nullptr, "to_fake: symbolic sizes need a FakeMode in this thread");
  const ShapeEnvPtr env = shape_env_of(*mode);
  TORCH_CHECK_VALUE(env != nullptr, "to_fake: the mode has no symbols; make a torchfake::SymbolicShapes of it first");
  TORCH_CHECK_VALUE(as_fake(tensor) == nullptr, "to_fake: expected a real tensor; the sizes of a fake cannot change");
  const at::Tensor fake = to_fake(tensor, mode);
  make_symbolic(fake, env, dynamic, "");
  return fake;
}

}  // namespace torchfake
