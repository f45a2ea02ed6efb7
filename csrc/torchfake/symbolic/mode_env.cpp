// The environment of a mode.
#include <torchfake/symbolic/mode_env.h>

#include <mutex>

namespace torchfake {

namespace {

struct Entry {
  c10::weak_intrusive_ptr<ModeState> mode;
  ShapeEnvPtr env;
};

// A registry beside the modes, so that modes of numbers know nothing of it. Entries of modes that are gone leave with the
// next one that comes.
struct Registry {
  std::mutex mutex;
  std::map<const ModeState*, Entry> entries;
};

Registry& registry() {
  static auto* registry = new Registry();  // never destroyed: threads may outlive static storage
  return *registry;
}

}  // namespace

ShapeEnvPtr shape_env_of(const ModeState& mode) {
  if (!ShapeEnv::exist()) {
    return nullptr;
  }
  std::lock_guard<std::mutex> lock(registry().mutex);
  const auto found = registry().entries.find(&mode);
  return found == registry().entries.end() || found->second.mode.expired() ? nullptr : found->second.env;
}

void set_shape_env(const ModePtr& mode, ShapeEnvPtr env) {
  std::vector<ShapeEnvPtr> gone;  // destroyed without the lock
  std::lock_guard<std::mutex> lock(registry().mutex);
  auto& entries = registry().entries;
  for (auto entry = entries.begin(); entry != entries.end();) {
    if (entry->second.mode.expired()) {
      gone.push_back(std::move(entry->second.env));
      entry = entries.erase(entry);
    } else {
      ++entry;
    }
  }
  entries.insert_or_assign(mode.get(), Entry{c10::weak_intrusive_ptr<ModeState>(mode), std::move(env)});
}

}  // namespace torchfake
