// The mode in which new tensors are fake, and its options.
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

// Is notified about every operator that a mode has handled; deferred initialisation can be built on it. `arguments` are
// the operator's arguments as passed, `outputs` its results. May throw, in which case the call fails with that error.
class OpRecorder {
 public:
  virtual ~OpRecorder() = default;
  virtual void on_op(
      const c10::OperatorHandle& op,
      c10::ArrayRef<c10::IValue> arguments,
      c10::ArrayRef<c10::IValue> outputs) = 0;
};

// What happens to a real tensor among an operator's arguments.
enum class RealTensors : uint8_t {
  kAmongThemselves,  // a call on real tensors only stays real; among fakes, data is converted on the way in
  kRefused,  // always an error
  kConverted,  // converted on the way in, each tensor once
};

// An option that one thread may change while others read it. Accesses are relaxed: a concurrent call sees either the
// old or the new value.
template <typename Value>
class Option {
 public:
  // Implicit, so that an option is written as its value: FakeModeOptions{.known_values = 0}.
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
  // For an optional value.
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

// A switch with two parts: it is on if it was turned on and no scope holds it off. Scopes of several threads may
// overlap in any order.
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
  // Once per hold_off().
  void release() noexcept {
    --reasons_to_be_off_;
  }

 private:
  std::atomic<bool> turned_on_;
  std::atomic<int64_t> reasons_to_be_off_;
};

struct FakeModeOptions {
  // Whether absent devices may be claimed. If false, requesting one throws DeviceNotFakedError.
  Option<bool> fake_cuda = true;
  // The largest number of elements for which a fake keeps values derived from constants; 0 keeps none.
  Option<int64_t> known_values = 16384;
  // The largest number of bytes kept for known values, over all fakes together. Values beyond it are unknown.
  size_t known_bytes = size_t{1} << 30;
  // Whether factories produce known values. If false, only constants do (torch.tensor, to_fake's `lift`).
  Option<bool> known_from_factories = true;
  // The largest number of elements for which random results are drawn, from the generator that a real call would use; 0
  // draws none. See Note [Draws].
  Option<int64_t> drawn_values = 64;
  // Whether a check for invalid values is assumed to find none: the gradients that a loss scaler checks are finite.
  Option<bool> assumes_valid = true;
  // The number of devices of an accelerator; 0 allows any index.
  Option<int64_t> cards = 0;
  // The compute capability of the claimed cards, 10 * major + minor. It determines which kernels are used.
  Option<int64_t> capability = 90;
  // Is notified of every stand-in for an unknown value. If null, reading an unknown value is an error.
  std::shared_ptr<StandIns> stand_ins;
  // Real values are computed along with every fake, random ones included, whatever their size: each operator also runs
  // for real.
  Option<bool> propagate_real_tensors = false;
  Option<RealTensors> real_tensors = RealTensors::kAmongThemselves;
  // Whether fakes of other modes are refused.
  bool exclusive = false;
  // Whether `equal` assumes that two tensors of unknown values differ, instead of failing. An assumption for callers
  // that know it is harmless: torch::nn::MultiheadAttention compares its inputs to choose between equivalent
  // implementations.
  Option<bool> distinct_tensors_differ = false;
  // Whether a mask of unknown values is assumed to select everything, the maximum it can select, instead of failing. A
  // router that assigns tokens to experts then assigns every token to every expert.
  Option<bool> selects_all = false;
  // Whether an operator without a meta kernel may run its CPU kernel on zeros.
  Option<bool> allow_fallback_kernels = true;
  // Whether a fake may claim the meta device.
  Option<bool> allow_meta = true;
  // Whether the shape cache is initially enabled: ModeState::cache is what is read.
  bool cache_enabled = true;
  // If inputs claim devices of two types, this type wins instead of an error.
  Option<std::optional<c10::DeviceType>> prefer_device_type = std::nullopt;
  std::shared_ptr<StorageObserver> storage_observer;
  // Is notified of every operator on fakes of the mode, wherever it is called; a recorder passed to FakeMode covers
  // that scope only.
  std::shared_ptr<OpRecorder> recorder;
};

// The persistent part of a mode: fakes keep it alive and stay bound to it after the mode has been left.
struct ModeState final : c10::intrusive_ptr_target {
  explicit ModeState(FakeModeOptions options);
  ~ModeState() override;
  // Called when the last owner is gone; weak pointers delay the destructor.
  void release_resources() override;

  // Options may be changed at any time by any thread; the rest is constant.
  FakeModeOptions options;
  // Whether the shape cache may answer.
  SharedSwitch cache;
  // Advanced when the same fakes are traced again: invalidates what they have memorised. See ValueMemos.
  Option<int64_t> epoch = 0;

  // The activation in which the mode was last entered or created a fake; 0 if none. See Note [Activation].
  std::atomic<uint32_t> used_in{0};
  void note_use() {
    if (C10_UNLIKELY(used_in.load(std::memory_order_relaxed) != activation_number())) {
      begin_use(*this);
    }
  }
};

using ModePtr = c10::intrusive_ptr<ModeState>;

// The innermost mode of this thread, or null. Autograd's threads inherit the mode of the thread that called backward.
ModePtr current_mode();
const ModePtr* find_current_mode();

// Whether this thread is in a mode.
bool in_fake_mode();

// Whether an exclusive mode, which to its users is one of Python's modes, is currently disabled along with the others:
// by no_dispatch(), while PyTorch's own FakeTensorMode runs a kernel, or while functionalization asks how a view
// changes sizes. A call without fakes among its arguments is then real.
bool is_kept_out(const ModeState& mode);

// Whether some mode is exclusive, so that calls must be checked for fakes of two modes.
bool exclusive_modes_exist();

// Whether a cache hit must still check for fakes of two modes or for a recorder: some mode is exclusive, or some scope
// of some thread has a recorder. A single flag, because every hit reads it.
bool hits_need_checks();

// If this thread is in a mode, calls `save` immediately, and calls what it returns when the thread's outermost mode is
// left. Further calls do nothing until then.
void restore_when_left(const std::function<std::function<void()>()>& save);

// The recorder of this thread's innermost scope, or null; and whether there is one, which every call asks.
std::shared_ptr<OpRecorder> scope_recorder();
bool scope_is_recorded();

// Overrides the modes' treatment of real tensors on this thread; without a value, the modes decide.
std::optional<RealTensors> real_tensors_override();
void set_real_tensors_override(std::optional<RealTensors> what);

struct ModeInfo;

// While alive, tensors created on this thread are fake. Scopes nest; the innermost mode's options apply. Must be
// destroyed on the thread that created it.
class FakeMode {
 public:
  explicit FakeMode(FakeModeOptions options = {});
  // Keeps the recorder of the enclosing scope if that has the same mode. Throws c10::ValueError if `state` is null.
  explicit FakeMode(const ModePtr& state);
  // With its own recorder, which is notified of calls on this thread and on threads on which autograd and at::launch
  // run work for it; null for none.
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

// While alive, this thread is in no mode: new tensors are real.
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
