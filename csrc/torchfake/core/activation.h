// What torchfake changes in PyTorch for fakes to work, and while what: one list, installed late and removable.
#pragma once

#include <cstdint>

namespace torchfake {

struct ModeState;

// Note [Activation]
// Loading the library changes nothing in PyTorch. Whatever fakes need there (kernels, device guards, hooks, names of
// Python) is a Change on one of three lists, by how long it has to hold:
//
//   kOnceActive   from the first mode that is entered, or the first fake that is made, until deactivate(). Such a change
//                 must leave every answer about real tensors outside a mode as it was, and cost them nothing.
//   kWhileFakes   while a mode that was entered, or has made a fake, is alive; fakes keep theirs alive. For what no
//                 condition can be attached to: the registry of device guards, the initialisation of devices. With the last
//                 fake it is gone.
//   kWhileEntered while a thread of the process is in a mode.
//
// Invariants. Changes are installed in the order of the lists and removed in reverse. `install` and `remove` of the last two
// lists run under a lock that every mode takes: they must not wait for another thread (Python's lock included), throw, or
// make a fake. Those of the first list may do all three; a failed one takes back what was installed before it.
// Rejected: installing when the library is loaded. A program that imports torchfake and makes no fake would pay for it, and
// a PyTorch without CUDA would answer as one that has it.
enum class Span : uint8_t { kOnceActive, kWhileFakes, kWhileEntered };

struct Change {
  void (*install)();
  void (*remove)();
};

// Puts a change on a list, for good. Made at load, by the file that knows the change; or later, by a front of another
// language: where the span has begun it is installed at once.
class RegisterChange {
 public:
  RegisterChange(Span span, Change change);
};

// Installs what is on the first list, if it is not. Entering a mode and making a fake do so by themselves. Thread-safe;
// a call that finds everything in place costs a load.
void activate();

// Removes all changes, and returns true; or does nothing and returns false while a thread is in a mode. Fakes that are
// alive cannot be used any more, until a mode is entered or another fake is made. Other threads must not be using fakes.
bool deactivate();

bool is_active();

// Whether a mode that was entered, or has made a fake, is alive: without one there is no fake.
bool fakes_exist();

// How many modes the threads of the process are in, nested ones counted.
int64_t entered_modes();

// How a thread waits for another that activates, which may need a lock that this one has: calls `wait(argument)` with that
// lock given up. Set once, by the front that has such a lock.
using WaitHook = void (*)(void (*wait)(void*), void* argument);
void set_wait_hook(WaitHook hook);

// ---- For the mode ----------------------------------------------------------------------------------------------------

// Of each activation; the first has 1.
uint32_t activation_number() noexcept;

// Called when a mode makes its first fake or is entered, once in each activation. See ModeState::note_use.
void begin_use(ModeState& mode);
// Called when a mode dies that was used.
void end_use() noexcept;

void mode_entered();
void mode_left() noexcept;

}  // namespace torchfake
