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

// What becomes of a real tensor among an operator's arguments.
enum class RealTensors : uint8_t {
  kAmongThemselves,  // real tensors make real ones; among fakes only a number may stand
  kRefused,  // an error, always
  kConverted,  // made fake on the way in, once for each
};

struct FakeModeOptions {
  // Whether devices that this machine lacks may be claimed. If false, asking for one throws DeviceNotFakedError.
  bool fake_cuda = true;
  // The most elements a fake may have whose values are kept because they follow from constants; 0 keeps none.
  int64_t known_values = 16384;
  // The most bytes that are kept for known values, of all fakes together. What is over it is not known.
  size_t known_bytes = size_t{1} << 30;
  // Whether factories make known values. If not, they come in with constants alone (torch.tensor, to_fake's `lift`).
  bool known_from_factories = true;
  // Real values travel along with every fake, random ones too, whatever their size: each operator also runs for real.
  bool propagate_real_tensors = false;
  RealTensors real_tensors = RealTensors::kAmongThemselves;
  // Whether fakes of other modes are refused.
  bool exclusive = false;
  // Whether `equal` takes two tensors of values that are not known for different, in place of an error. A guess, for
  // those who know that it does no harm: torch::nn::MultiheadAttention asks it of its inputs, to choose between ways
  // that come to the same.
  bool distinct_tensors_differ = false;
  // Whether a mask of values that are not known is taken to select everything, in place of an error: the most that it can
  // select. A guess, for those who ask for it: a router that gives tokens to experts then gives each of them to each.
  bool selects_all = false;
  // Whether an operator that has no meta kernel may run its CPU kernel on zeros.
  bool allow_fallback_kernels = true;
  // Whether a fake may claim the meta device.
  bool allow_meta = true;
  bool cache_enabled = true;
  // Where inputs claim devices of two types, this one wins instead of an error.
  std::optional<c10::DeviceType> prefer_device_type;
  std::shared_ptr<StorageObserver> storage_observer;
  std::shared_ptr<OpRecorder> recorder;
};

// A mode's lasting part: fakes keep it alive and stay bound to it after the mode has been left.
struct ModeState final : c10::intrusive_ptr_target {
  explicit ModeState(FakeModeOptions options);
  ~ModeState() override;

  // Flags may be changed between calls, by the thread that uses the mode; `exclusive` may not.
  FakeModeOptions options;
  // Advanced by whoever traces again with the same fakes: ends what they remember. See ValueMemos.
  int64_t epoch = 0;
};

using ModePtr = c10::intrusive_ptr<ModeState>;

// The innermost mode of this thread, or null. Autograd's threads have the mode of the thread that called backward.
ModePtr current_mode();
const ModePtr* find_current_mode();

// Whether this thread is in a mode.
bool in_fake_mode();

// Whether an exclusive mode, which is one of Python's to those who use it, is kept out for now with the rest of these:
// by no_dispatch(), while PyTorch's own FakeTensorMode runs a kernel, while functionalization asks what a view does to
// sizes. What has no fake among its arguments is real then.
bool is_kept_out(const ModeState& mode);

// Whether some mode is exclusive, so that calls have to be looked at for fakes of two modes.
bool exclusive_modes_exist();

// What this thread does with real tensors, in place of what its modes say; nothing leaves it to them.
std::optional<RealTensors> real_tensors_override();
void set_real_tensors_override(std::optional<RealTensors> what);

struct ModeInfo;

// While one lives, tensors created on this thread are fake. Nests: the innermost mode's options hold. To be destroyed
// on the thread that made it.
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
  std::shared_ptr<ModeInfo> info_;
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
  std::shared_ptr<ModeInfo> info_;
};

}  // namespace torchfake
