// Installs and removes the changes that fakes need in PyTorch.
#include <torchfake/core/activation.h>

#include <torchfake/core/fake_mode.h>

#include <array>
#include <atomic>
#include <mutex>
#include <vector>

namespace torchfake {

namespace {

struct List {
  std::vector<Change> changes;
  size_t installed = 0;

  void install() {
    for (; installed < changes.size(); ++installed) {
      changes[installed].install();
    }
  }
  void remove() {
    while (installed > 0) {
      changes[--installed].remove();
    }
  }
  void hold(bool wanted) {
    wanted ? install() : remove();
  }
};

struct Activation {
  // Held while the first list is installed or removed. A thread waiting for it releases any lock the holder may need.
  std::mutex first_mutex;
  // Guards everything else; only held briefly.
  std::mutex mutex;
  std::array<List, 3> lists;
  int64_t used = 0;
  int64_t entered = 0;

  List& list(Span span) {
    return lists[static_cast<size_t>(span)];
  }
};

// Never destroyed: fakes, and with them modes, may outlive static storage.
Activation& activation() {
  static auto* activation = new Activation();
  return *activation;
}

std::atomic<bool> g_active{false};
std::atomic<bool> g_fakes_exist{false};
std::atomic<uint32_t> g_number{1};
std::atomic<WaitHook> g_wait_hook{nullptr};

// Whether this thread is activating: an installation may itself enter a mode.
thread_local bool t_activating = false;

std::unique_lock<std::mutex> lock_first() {
  std::unique_lock lock(activation().first_mutex, std::try_to_lock);
  if (lock.owns_lock()) {
    return lock;
  }
  const auto wait = [](void* argument) { static_cast<std::unique_lock<std::mutex>*>(argument)->lock(); };
  if (WaitHook hook = g_wait_hook.load(std::memory_order_acquire)) {
    hook(wait, &lock);
  } else {
    lock.lock();
  }
  return lock;
}

// Requires the mutex.
void update_spans(Activation& state) {
  // Also while deactivated: autograd terminates the process if it meets a fake whose device has no guard.
  state.list(Span::kWhileFakes).hold(state.used > 0);
  state.list(Span::kWhileEntered).hold(state.entered > 0 && is_active());
  g_fakes_exist.store(state.used > 0, std::memory_order_release);
}

}  // namespace

RegisterChange::RegisterChange(Span span, Change change) {
  Activation& state = activation();
  const auto lock = lock_first();
  std::unique_lock guard(state.mutex);
  state.list(span).changes.push_back(change);
  if (span != Span::kOnceActive) {
    update_spans(state);
  } else if (is_active()) {
    guard.unlock();
    state.list(span).install();
  }
}

bool is_active() {
  return g_active.load(std::memory_order_acquire);
}

bool fakes_exist() {
  return g_fakes_exist.load(std::memory_order_acquire);
}

int64_t entered_modes() {
  const std::lock_guard guard(activation().mutex);
  return activation().entered;
}

void set_wait_hook(WaitHook hook) {
  g_wait_hook.store(hook, std::memory_order_release);
}

uint32_t activation_number() noexcept {
  return g_number.load(std::memory_order_relaxed);
}

void activate() {
  if (is_active() || t_activating) {
    return;
  }
  Activation& state = activation();
  const auto lock = lock_first();
  if (is_active()) {
    return;
  }
  t_activating = true;
  List& first = state.list(Span::kOnceActive);
  try {
    first.install();
  } catch (...) {
    first.remove();
    t_activating = false;
    throw;
  }
  t_activating = false;
  g_active.store(true, std::memory_order_release);
  const std::lock_guard guard(state.mutex);
  update_spans(state);
}

bool deactivate() {
  Activation& state = activation();
  const auto lock = lock_first();
  {
    const std::lock_guard guard(state.mutex);
    if (state.entered > 0) {
      return false;
    }
    // Deactivated before anything is removed: a thread that enters a mode from here on waits for the lock above and
    // reinstalls.
    g_number.fetch_add(1, std::memory_order_relaxed);
    g_active.store(false, std::memory_order_release);
    update_spans(state);
  }
  state.list(Span::kOnceActive).remove();
  return true;
}

void begin_use(ModeState& mode) {
  activate();
  Activation& state = activation();
  const std::lock_guard guard(state.mutex);
  const uint32_t number = activation_number();
  state.used += mode.used_in.exchange(number, std::memory_order_relaxed) == 0 ? 1 : 0;
  update_spans(state);
}

void end_use() noexcept {
  Activation& state = activation();
  const std::lock_guard guard(state.mutex);
  --state.used;
  update_spans(state);
}

void mode_entered() {
  Activation& state = activation();
  const std::lock_guard guard(state.mutex);
  ++state.entered;
  update_spans(state);
}

void mode_left() noexcept {
  Activation& state = activation();
  const std::lock_guard guard(state.mutex);
  --state.entered;
  update_spans(state);
}

}  // namespace torchfake
