// The mode in which tensors are created fake.
#include <torchfake/core/fake_mode.h>

#include <c10/core/AutogradState.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <torchfake/core/compat.h>

#include <atomic>

namespace torchfake {

namespace {

struct ModeInfo final : c10::DebugInfoBase {
  explicit ModeInfo(ModePtr mode) : mode(std::move(mode)) {}
  ModePtr mode;
};

void push(ModePtr mode) {
  c10::ThreadLocalDebugInfo::_push(compat::mode_info_kind(), std::make_shared<ModeInfo>(std::move(mode)));
}

std::atomic<int64_t> g_exclusive_modes{0};

thread_local std::optional<RealTensors> t_real_tensors;

bool set_included(bool included) {
  const bool before = c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::Fake);
  c10::impl::tls_set_dispatch_key_included(c10::DispatchKey::Fake, included);
  return before;
}

}  // namespace

ModeState::ModeState(FakeModeOptions options) : options(std::move(options)) {
  g_exclusive_modes += this->options.exclusive ? 1 : 0;
}

ModeState::~ModeState() {
  g_exclusive_modes -= options.exclusive ? 1 : 0;
}

bool exclusive_modes_exist() {
  return g_exclusive_modes.load(std::memory_order_relaxed) > 0;
}

std::optional<RealTensors> real_tensors_override() {
  return t_real_tensors;
}

void set_real_tensors_override(std::optional<RealTensors> what) {
  t_real_tensors = what;
}

// Note [Where the mode lives]
// Two thread-locals of PyTorch make a mode: the Fake key among the keys that every dispatch includes, and an entry in
// the thread-local debug info that holds the options. Both are part of at::ThreadLocalState, so autograd's workers and
// at::launch get them with no help of ours. A thread_local of torchfake would not travel.

const ModePtr* find_current_mode() {
  auto* info = static_cast<ModeInfo*>(c10::ThreadLocalDebugInfo::get(compat::mode_info_kind()));
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

// Note [One thread for backward]
// Autograd sends the work of each non-CPU device to a thread of that device, and fails for a device that had none when
// its threads were started. A backward on fakes has nothing to wait for, so in the mode it runs on the calling thread,
// whichever devices are claimed, and saves the hops. Outside the mode PyTorch's own rule holds.
FakeMode::FakeMode(ModePtr state) : state_(std::move(state)) {
  push(state_);
  was_included_ = set_included(true);
  c10::AutogradState& autograd = c10::AutogradState::get_tls_state();
  was_multithreaded_ = autograd.get_multithreading_enabled();
  autograd.set_multithreading_enabled(false);
}

FakeMode::~FakeMode() {
  c10::AutogradState::get_tls_state().set_multithreading_enabled(was_multithreaded_);
  set_included(was_included_);
  c10::ThreadLocalDebugInfo::_pop(compat::mode_info_kind());
}

NoFakeMode::NoFakeMode() {
  push(ModePtr());
  was_included_ = set_included(false);
}

NoFakeMode::~NoFakeMode() {
  set_included(was_included_);
  c10::ThreadLocalDebugInfo::_pop(compat::mode_info_kind());
}

}  // namespace torchfake
