// The mode in which tensors are created fake, and the options fakes take from it.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <torchfake/core/activation.h>
#include <torchfake/core/fake_storage.h>
#include <torchfake/core/stand_ins.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

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
  kAmongThemselves,  // real tensors make real ones; among fakes, data is made fake on the way in
  kRefused,  // an error, always
  kConverted,  // made fake on the way in, once for each
};

// An option that one thread may change while others read it. Nothing else is ordered by it: a call that runs meanwhile
// sees the old value or the new one.
template <typename Value>
class Option {
 public:
  // Not explicit: an option is written as its value, FakeModeOptions{.known_values = 0}.
  template <typename From>
    requires(std::is_convertible_v<From, Value> && !std::is_same_v<std::remove_cvref_t<From>, Option>)
  Option(From&& value) noexcept : value_(std::forward<From>(value)) {}
  Option(const Option& other) noexcept : value_(other.get()) {}
  Option& operator=(const Option& other) noexcept {
    value_.store(other.get(), std::memory_order_relaxed);
    return *this;
  }
  ~Option() = default;

  Value get() const noexcept {
    return value_.load(std::memory_order_relaxed);
  }
  operator Value() const noexcept {
    return get();
  }
  // Of one that may be absent.
  bool has_value() const noexcept {
    return get().has_value();
  }
  template <typename Default>
  auto value_or(Default other) const noexcept {
    return get().value_or(other);
  }

 private:
  std::atomic<Value> value_;
};

// A switch that anybody may turn, and that scopes hold off while they last: it is on where it was turned on and nobody
// holds it off. Scopes of several threads may overlap in any order.
class SharedSwitch {
 public:
  explicit SharedSwitch(bool on) noexcept : turned_on_(on), reasons_to_be_off_(on ? 0 : 1) {}

  bool is_on() const noexcept {
    return reasons_to_be_off_.load(std::memory_order_relaxed) == 0;
  }
  void turn(bool on) noexcept {
    if (turned_on_.exchange(on) != on) {
      reasons_to_be_off_ += on ? -1 : 1;
    }
  }
  void hold_off() noexcept {
    ++reasons_to_be_off_;
  }
  // Once for each hold_off().
  void release() noexcept {
    --reasons_to_be_off_;
  }

 private:
  std::atomic<bool> turned_on_;
  std::atomic<int64_t> reasons_to_be_off_;
};

struct FakeModeOptions {
  // Whether devices that this machine lacks may be claimed. If false, asking for one throws DeviceNotFakedError.
  Option<bool> fake_cuda = true;
  // The most elements a fake may have whose values are kept because they follow from constants; 0 keeps none.
  Option<int64_t> known_values = 16384;
  // The most bytes that are kept for known values, of all fakes together. What is over it is not known.
  size_t known_bytes = size_t{1} << 30;
  // Whether factories make known values. If not, they come in with constants alone (torch.tensor, to_fake's `lift`).
  Option<bool> known_from_factories = true;
  // The most elements of a random result whose values are drawn, from the generator that a real call would use; 0 draws
  // none. See Note [Draws].
  Option<int64_t> drawn_values = 64;
  // Whether a search for values that are amiss is taken to find none: the gradients that a loss scaler checks are finite.
  Option<bool> assumes_valid = true;
  // How many devices of an accelerator there are; 0 lets any index be claimed.
  Option<int64_t> cards = 0;
  // The compute capability of the claimed cards, 10 * major + minor. Which kernels answer depends on it.
  Option<int64_t> capability = 90;
  // Hears of what is answered in the place of values that nobody knows. Where there is none, that is an error.
  std::shared_ptr<StandIns> stand_ins;
  // Real values travel along with every fake, random ones too, whatever their size: each operator also runs for real.
  Option<bool> propagate_real_tensors = false;
  Option<RealTensors> real_tensors = RealTensors::kAmongThemselves;
  // Whether fakes of other modes are refused.
  bool exclusive = false;
  // Whether `equal` takes two tensors of values that are not known for different, in place of an error. A guess, for
  // those who know that it does no harm: torch::nn::MultiheadAttention asks it of its inputs, to choose between ways
  // that come to the same.
  Option<bool> distinct_tensors_differ = false;
  // Whether a mask of values that are not known is taken to select everything, in place of an error: the most that it can
  // select. A guess, for those who ask for it: a router that gives tokens to experts then gives each of them to each.
  Option<bool> selects_all = false;
  // Whether an operator that has no meta kernel may run its CPU kernel on zeros.
  Option<bool> allow_fallback_kernels = true;
  // Whether a fake may claim the meta device.
  Option<bool> allow_meta = true;
  // Whether the shape cache may answer, to begin with: ModeState::cache is asked.
  bool cache_enabled = true;
  // Where inputs claim devices of two types, this one wins instead of an error.
  Option<std::optional<c10::DeviceType>> prefer_device_type = std::nullopt;
  std::shared_ptr<StorageObserver> storage_observer;
  // Hears of every operator on fakes of the mode, wherever it is called; FakeMode takes one for its scope alone.
  std::shared_ptr<OpRecorder> recorder;
};

// A mode's lasting part: fakes keep it alive and stay bound to it after the mode has been left.
struct ModeState final : c10::intrusive_ptr_target {
  explicit ModeState(FakeModeOptions options);
  ~ModeState() override;
  // When nobody holds it any more; a weak pointer keeps the destructor waiting.
  void release_resources() override;

  // What is an Option may be changed at any time, by any thread; the rest is as it was made.
  FakeModeOptions options;
  // Whether the shape cache may answer.
  SharedSwitch cache;
  // Advanced by whoever traces again with the same fakes: ends what they remember. See ValueMemos.
  Option<int64_t> epoch = 0;

  // The activation in which the mode was entered or made a fake last; 0 if it never did. See Note [Activation].
  std::atomic<uint32_t> used_in{0};
  void note_use() {
    if (C10_UNLIKELY(used_in.load(std::memory_order_relaxed) != activation_number())) {
      begin_use(*this);
    }
  }
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

// Whether a call needs more than the outcome that the cache has for it, for any of these reasons: some mode is exclusive,
// or some scope of some thread has a recorder. One question for both, because every hit asks it.
bool calls_need_a_look();

// Where this thread is in a mode, has `save` called once, at once, and what it returns when the thread's outermost mode is
// left. Later calls do nothing until then.
void restore_when_left(const std::function<std::function<void()>()>& save);

// The recorder of this thread's innermost scope, or null; and whether there is one, which is asked of every call.
std::shared_ptr<OpRecorder> scope_recorder();
bool scope_is_recorded();

// What this thread does with real tensors, in place of what its modes say; nothing leaves it to them.
std::optional<RealTensors> real_tensors_override();
void set_real_tensors_override(std::optional<RealTensors> what);

struct ModeInfo;

// While one lives, tensors created on this thread are fake. Nests: the innermost mode's options hold. To be destroyed
// on the thread that made it.
class FakeMode {
 public:
  explicit FakeMode(FakeModeOptions options = {});
  // Goes on with the recorder of the scope around it, where that is one of the same mode. Throws c10::ValueError if `state`
  // is null.
  explicit FakeMode(const ModePtr& state);
  // With a recorder of its own, which hears of what is called on this thread and on those that autograd and at::launch
  // run for it; null for none.
  FakeMode(ModePtr state, std::shared_ptr<OpRecorder> recorder);
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
