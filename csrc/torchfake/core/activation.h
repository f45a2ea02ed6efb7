// The changes that fakes need in PyTorch: three lists by lifetime, installed late and removable.
#pragma once

#include <cstdint>

namespace torchfake {

struct ModeState;

// Note [Activation]
// Loading the library changes nothing in PyTorch. Everything fakes need there (kernels, device guards, hooks, replaced
// Python names) is a Change on one of three lists, grouped by lifetime:
//
//   kOnceActive   from the first mode entered or the first fake created until deactivate(). Such a change must leave
//                 every result for real tensors outside a mode unchanged, at no cost.
//   kWhileFakes   while some mode that has been entered or has created a fake is alive (fakes keep their mode alive),
//                 even after deactivate(), because autograd requires the guard of a fake's device in places that may
//                 not throw. For global state that cannot be made conditional: the registry of device guards,
//                 initialisation.
//   kWhileEntered while some thread of the process is in a mode.
//
// Invariants. Changes are installed in list order and removed in reverse. `install` and `remove` of the last two lists
// run under a lock that every mode takes: they must not wait for another thread (including for Python's lock), throw,
// or create a fake. Those of the first list may do all three; if one fails, the ones installed before it are removed
// again.
// Rejected: installing at load time. A program that imports torchfake but creates no fake would pay for it, and a
// PyTorch without CUDA would behave as if it had CUDA.
enum class Span : uint8_t { kOnceActive, kWhileFakes, kWhileEntered };

struct Change {
  void (*install)();
  void (*remove)();
};

// Adds a change to a list, permanently. Registered at load time by the file that owns the change, or later by a
// language binding; if the span has already begun, the change is installed immediately.
class RegisterChange {
 public:
  RegisterChange(Span span, Change change);
};

// Installs the changes on the first list if necessary. Entering a mode and creating a fake call this themselves.
// Thread-safe; costs one load if everything is already in place.
void activate();

// Removes the changes of the first list and returns true; does nothing and returns false while a thread is in a mode.
// Operators on existing fakes are errors until a mode is entered or another fake is created. No other thread may be
// using fakes.
bool deactivate();

// Whether the changes of the first list are installed.
bool is_active();

// Whether some mode that has been entered or has created a fake is alive. If not, no fake exists.
bool fakes_exist();

// The number of modes that threads of the process are in, including nested ones.
int64_t entered_modes();

// How to wait for another thread's activation, which may need a lock this thread holds: calls `wait(argument)` with
// that lock released. Set once, by the binding that owns such a lock.
using WaitHook = void (*)(void (*wait)(void*), void* argument);
void set_wait_hook(WaitHook hook);

// ---- For the mode ----------------------------------------------------------------------------------------------------

// The number of the current activation, counted from 1.
uint32_t activation_number() noexcept;

// Called once per activation when a mode is entered or creates its first fake. See ModeState::note_use.
void begin_use(ModeState& mode);
// Called when a used mode is destroyed.
void end_use() noexcept;

// Called when a thread enters or leaves a mode.
void mode_entered();
void mode_left() noexcept;

}  // namespace torchfake
