// The mode in which new tensors are fake.
#include <torchfake/core/fake_mode.h>

#include <c10/core/AutogradState.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include <torchfake/core/compat.h>

#include <atomic>
#include <utility>

namespace torchfake {

// An entry in the thread's debug info: an entered mode, or null for none. See Note [Where the mode lives].
struct ModeInfo final : c10::DebugInfoBase {
  ModePtr mode;
  std::shared_ptr<OpRecorder> recorder;
  ModeInfo* outer = nullptr;  // alive as long as this one is in the debug info
  const c10::ThreadLocalDebugInfo* entry = nullptr;
  std::atomic<bool> left{false};  // left before the modes entered after it
  std::function<void()> restore;  // of the outermost mode: see restore_when_left
  bool was_included = false;  // previous state of the Fake key
  bool was_multithreaded = false;  // previous state of multithreaded autograd
};

namespace {

std::atomic<int64_t> g_exclusive_modes{0};
std::atomic<int64_t> g_recorded_scopes{0};
std::atomic<int64_t> g_reasons_to_check{0};  // both kinds together

thread_local std::optional<RealTensors> t_real_tensors;

ModeInfo* innermost_entry() {
  return static_cast<ModeInfo*>(c10::ThreadLocalDebugInfo::get(compat::mode_info_kind()));
}

// The innermost mode that has not been left.
ModeInfo* innermost() {
  ModeInfo* info = innermost_entry();
  while (info != nullptr && info->left) {
    info = info->outer;
  }
  return info;
}

void set_thread_state(bool included, bool multithreaded) {
  c10::impl::tls_set_dispatch_key_included(c10::DispatchKey::Fake, included);
  c10::AutogradState::get_tls_state().set_multithreading_enabled(multithreaded);
}

// Note [One thread for backward]
// Autograd runs the work of each non-CPU device on a thread of that device, and fails for a device that did not exist
// when those threads were started. A backward pass on fakes has nothing to wait for, so inside the mode it runs on the
// calling thread for any claimed device, which also saves switching threads. Outside the mode PyTorch's own rule
// applies.
std::shared_ptr<ModeInfo> enter(ModePtr mode, std::shared_ptr<OpRecorder> recorder) {
  auto info = std::make_shared<ModeInfo>();
  if (recorder) {
    ++g_recorded_scopes;
    ++g_reasons_to_check;
  }
  info->recorder = std::move(recorder);
  info->outer = innermost_entry();
  info->was_included = in_fake_mode();
  info->was_multithreaded = c10::AutogradState::get_tls_state().get_multithreading_enabled();
  set_thread_state(mode != nullptr, mode == nullptr && info->was_multithreaded);
  info->mode = std::move(mode);
  c10::ThreadLocalDebugInfo::_push(compat::mode_info_kind(), info);
  info->entry = c10::ThreadLocalDebugInfo::current().get();
  return info;
}

bool is_on_top(const ModeInfo& info) {
  return info.entry == c10::ThreadLocalDebugInfo::current().get();
}

// Modes are usually left in reverse order, and each restores what it found. One that is left early (a generator being
// closed, a profiler that started inside and is still running) is only marked until the modes above it are gone. Other
// threads may hold the entry as well: an unmarked entry stays valid for them.
void leave(ModeInfo& info) {
  if (info.restore) {
    std::exchange(info.restore, nullptr)();
  }
  if (info.recorder) {
    --g_recorded_scopes;
    --g_reasons_to_check;
  }
  bool was_included = info.was_included;
  bool was_multithreaded = info.was_multithreaded;
  if (is_on_top(info)) {
    c10::ThreadLocalDebugInfo::_pop(compat::mode_info_kind());
  } else {
    info.left = true;
  }
  for (ModeInfo* top = innermost_entry(); top != nullptr && top->left && is_on_top(*top); top = innermost_entry()) {
    was_included = top->was_included;
    was_multithreaded = top->was_multithreaded;
    c10::ThreadLocalDebugInfo::_pop(compat::mode_info_kind());
  }
  for (const ModeInfo* outer = innermost_entry(); outer != nullptr; outer = outer->outer) {
    was_included = outer->was_included;
    was_multithreaded = outer->was_multithreaded;
  }
  const ModeInfo* now = innermost();
  const bool fakes = now != nullptr && now->mode != nullptr;
  set_thread_state(now == nullptr ? was_included : fakes, !fakes && was_multithreaded);
}

}  // namespace

ModeState::ModeState(FakeModeOptions options) : options(std::move(options)), cache(this->options.cache_enabled) {
  g_exclusive_modes += this->options.exclusive ? 1 : 0;
  g_reasons_to_check += this->options.exclusive ? 1 : 0;
}

void ModeState::release_resources() {
  if (used_in.exchange(0, std::memory_order_relaxed) != 0) {
    end_use();
  }
}

ModeState::~ModeState() {
  ModeState::release_resources();
  g_exclusive_modes -= options.exclusive ? 1 : 0;
  g_reasons_to_check -= options.exclusive ? 1 : 0;
}

bool is_kept_out(const ModeState& mode) {
  if (!mode.options.exclusive) {
    return false;
  }
  // A kernel that the engine runs in the mode also excludes Python's modes, and none of the other two.
  const c10::DispatchKeySet excluded = c10::impl::tls_local_dispatch_key_set().excluded_;
  return excluded.has(c10::DispatchKey::Python) &&
      (excluded.has(c10::DispatchKey::PreDispatch) || excluded.has(c10::DispatchKey::Functionalize));
}

bool exclusive_modes_exist() {
  return g_exclusive_modes.load(std::memory_order_relaxed) > 0;
}

bool hits_need_checks() {
  return g_reasons_to_check.load(std::memory_order_relaxed) > 0;
}

void restore_when_left(const std::function<std::function<void()>()>& save) {
  ModeInfo* outermost = nullptr;
  for (ModeInfo* info = innermost_entry(); info != nullptr; info = info->outer) {
    if (info->mode != nullptr && !info->left) {
      outermost = info;
    }
  }
  if (outermost != nullptr && !outermost->restore) {
    outermost->restore = save();
  }
}

std::shared_ptr<OpRecorder> scope_recorder() {
  const ModeInfo* info = innermost();
  return info == nullptr ? nullptr : info->recorder;
}

bool scope_is_recorded() {
  if (C10_LIKELY(g_recorded_scopes.load(std::memory_order_relaxed) == 0)) {
    return false;
  }
  const ModeInfo* info = innermost();
  return info != nullptr && info->recorder != nullptr;
}

std::optional<RealTensors> real_tensors_override() {
  return t_real_tensors;
}

void set_real_tensors_override(std::optional<RealTensors> what) {
  t_real_tensors = what;
}

// Note [Where the mode lives]
// Two of PyTorch's thread-locals make up a mode: the Fake key among the keys included in every dispatch, and an entry
// in the thread-local debug info that holds the options. Both are part of at::ThreadLocalState, so autograd's workers
// and at::launch inherit them. A thread_local of torchfake would not be propagated.

const ModePtr* find_current_mode() {
  const ModeInfo* info = innermost();
  return info == nullptr ? nullptr : &info->mode;
}

ModePtr current_mode() {
  const ModePtr* mode = find_current_mode();
  return mode == nullptr ? ModePtr() : *mode;
}

bool in_fake_mode() {
  return c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::Fake);
}

FakeMode::FakeMode(FakeModeOptions options) : FakeMode(c10::make_intrusive<ModeState>(std::move(options))) {}

namespace {

std::shared_ptr<OpRecorder> recorder_around(const ModePtr& state) {
  const ModeInfo* around = innermost();
  return around != nullptr && around->mode == state ? around->recorder : nullptr;
}

}  // namespace

FakeMode::FakeMode(const ModePtr& state) : FakeMode(state, recorder_around(state)) {}

FakeMode::FakeMode(ModePtr state, std::shared_ptr<OpRecorder> recorder) : state_(std::move(state)) {
  TORCH_CHECK_VALUE(state_, "FakeMode: expected a mode, got none; NoFakeMode suspends the one that is active.");
  mode_entered();  // first: prevents deactivation from here on
  try {
    state_->note_use();
    info_ = enter(state_, std::move(recorder));
  } catch (...) {
    mode_left();
    throw;
  }
}

FakeMode::~FakeMode() {
  leave(*info_);
  mode_left();
}

NoFakeMode::NoFakeMode() : info_(enter(ModePtr(), nullptr)) {}

NoFakeMode::~NoFakeMode() {
  leave(*info_);
}

}  // namespace torchfake
