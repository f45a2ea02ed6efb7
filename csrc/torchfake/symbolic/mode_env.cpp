// The environment of a mode.
#include <torchfake/symbolic/mode_env.h>

#include <algorithm>
#include <mutex>

namespace torchfake {

namespace {

struct Entry {
  c10::weak_intrusive_ptr<ModeState> mode;
  ShapeEnvPtr env;
  std::shared_ptr<SymbolSource> source;
};

// The symbol source of torchfake's own environments.
class OwnSymbols final : public SymbolSource {
 public:
  explicit OwnSymbols(ShapeEnvPtr env) : env_(std::move(env)) {}

  bool gives_sizes() override {
    return env_->allow_dynamic_output_shape_ops;
  }
  bool gives_values() override {
    return env_->allow_scalar_outputs;
  }
  c10::SymInt new_size(int64_t low, std::optional<int64_t> high) override {
    const ExprPtr size = env_->create_unbacked(ValueType::kInt, /*is_size=*/true, "");
    env_->bound_symbol(size, {low, high.value_or(Range::kNoHigh)});
    return to_sym_int(env_, size);
  }
  c10::Scalar new_value(ValueType type) override {
    if (type == ValueType::kFloat) {
      return to_sym_float(env_, env_->create_unbacked(type, /*is_size=*/false, ""));
    }
    const ExprPtr number = env_->create_unbacked(ValueType::kInt, /*is_size=*/false, "");
    if (type == ValueType::kInt) {
      return to_sym_int(env_, number);
    }
    env_->bound_symbol(number, {0, 1});
    return to_sym_bool(env_, env_->pool().eq(number, env_->pool().integer(1)));
  }

 private:
  const ShapeEnvPtr env_;
};

// A registry outside of the modes, so that modes without symbolic sizes do not depend on it. Entries of destroyed modes
// are removed each time that the number of entries has doubled, so that adding one takes constant time.
struct Registry {
  static constexpr size_t kFirstSweep = 8;
  std::mutex mutex;
  std::map<const ModeState*, Entry> entries;
  size_t next_sweep = kFirstSweep;
};

Registry& registry() {
  static auto* registry = new Registry();  // never destroyed: threads may outlive static storage
  return *registry;
}

}  // namespace

namespace {

// The registry's entry for a mode, or nothing.
std::optional<Entry> find_entry(const ModeState& mode) {
  if (ShapeEnv::exist()) {
    std::lock_guard<std::mutex> lock(registry().mutex);
    const auto found = registry().entries.find(&mode);
    if (found != registry().entries.end() && !found->second.mode.expired()) {
      return found->second;
    }
  }
  return std::nullopt;
}

void set_entry(const ModePtr& mode, ShapeEnvPtr env, std::shared_ptr<SymbolSource> source) {
  std::vector<Entry> gone;  // destroyed after the lock is released
  std::lock_guard<std::mutex> lock(registry().mutex);
  auto& entries = registry().entries;
  if (entries.size() >= registry().next_sweep) {
    for (auto entry = entries.begin(); entry != entries.end();) {
      if (entry->second.mode.expired()) {
        gone.push_back(std::move(entry->second));
        entry = entries.erase(entry);
      } else {
        ++entry;
      }
    }
    registry().next_sweep = std::max(Registry::kFirstSweep, 2 * entries.size());
  }
  entries.insert_or_assign(
      mode.get(), Entry{c10::weak_intrusive_ptr<ModeState>(mode), std::move(env), std::move(source)});
}

}  // namespace

ShapeEnvPtr shape_env_of(const ModeState& mode) {
  const std::optional<Entry> entry = find_entry(mode);
  return entry ? entry->env : nullptr;
}

std::shared_ptr<SymbolSource> symbol_source_of(const ModeState& mode) {
  const std::optional<Entry> entry = find_entry(mode);
  return entry ? entry->source : nullptr;
}

void set_shape_env(const ModePtr& mode, ShapeEnvPtr env) {
  auto source = std::make_shared<OwnSymbols>(env);
  set_entry(mode, std::move(env), std::move(source));
}

void set_symbol_source(const ModePtr& mode, std::shared_ptr<SymbolSource> source) {
  ShapeEnv::note_existence();
  set_entry(mode, nullptr, std::move(source));
}

}  // namespace torchfake
