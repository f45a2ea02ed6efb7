// The mode in which tensors are created fake, and the options fakes take from it.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <torchfake/core/fake_storage.h>

#include <memory>
#include <optional>

namespace c10 {
class OperatorHandle;
struct IValue;
}  // namespace c10

namespace torchfake {

// Hears of every operator a mode has answered: the seam on which deferred initialisation is built. `arguments` are the
// operator's arguments as they were called, `outputs` what it returned. May throw; the call then fails with that.
class OpRecorder {
 public:
  virtual ~OpRecorder() = default;
  virtual void on_op(
      const c10::OperatorHandle& op,
      c10::ArrayRef<c10::IValue> arguments,
      c10::ArrayRef<c10::IValue> outputs) = 0;
};

struct FakeModeOptions {
  // Whether devices that this machine lacks may be claimed. If false, asking for one throws DeviceNotFakedError.
  bool fake_cuda = true;
  // The most elements a fake may have whose values are kept because they follow from constants; 0 keeps none.
  int64_t known_values = 16384;
  std::shared_ptr<StorageObserver> storage_observer;
  std::shared_ptr<OpRecorder> recorder;
};

// A mode's lasting part: fakes keep it alive and stay bound to it after the mode has been left.
struct ModeState final : c10::intrusive_ptr_target {
  explicit ModeState(FakeModeOptions options) : options(std::move(options)) {}
  const FakeModeOptions options;
};

using ModePtr = c10::intrusive_ptr<ModeState>;

// The innermost mode of this thread, or null. Autograd's threads have the mode of the thread that called backward.
ModePtr current_mode();
const ModePtr* find_current_mode();

// Whether this thread is in a mode.
bool in_fake_mode();

// While one lives, tensors created on this thread are fake. Nests: the innermost mode's options hold. To be destroyed
// on the thread that made it, in reverse order of construction.
class FakeMode {
 public:
  explicit FakeMode(FakeModeOptions options = {});
  explicit FakeMode(ModePtr state);
  ~FakeMode();

  FakeMode(const FakeMode&) = delete;
  FakeMode& operator=(const FakeMode&) = delete;
  FakeMode(FakeMode&&) = delete;
  FakeMode& operator=(FakeMode&&) = delete;

  const ModePtr& state() const {
    return state_;
  }

 private:
  ModePtr state_;
  bool was_included_;
  bool was_multithreaded_;
};

// While one lives, this thread is in no mode: tensors created are real.
class NoFakeMode {
 public:
  NoFakeMode();
  ~NoFakeMode();

  NoFakeMode(const NoFakeMode&) = delete;
  NoFakeMode& operator=(const NoFakeMode&) = delete;
  NoFakeMode(NoFakeMode&&) = delete;
  NoFakeMode& operator=(NoFakeMode&&) = delete;

 private:
  bool was_included_;
};

}  // namespace torchfake
