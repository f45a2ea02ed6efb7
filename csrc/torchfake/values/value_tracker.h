// Constant propagation: accompanies one call, and computes the values of its outputs if they are known.
#pragma once

#include <torchfake/core/call.h>
#include <torchfake/values/value_ranges.h>

namespace torchfake {

// Constructed before the kernel consumes the arguments; `finish` is called after it. See Note [Known values].
class ValueTracker {
 public:
  ValueTracker(const Call& call, const ModeState& mode);

  // Whether everything that the operator reads is known.
  bool inputs_known() const {
    return inputs_known_;
  }

  // Whether the real operator will run on the known inputs.
  bool computes() const {
    return computes_;
  }

  // Whether values take part in the call and determine all that `finish` does: nothing is written, received or drawn,
  // and the inputs are read as given rather than reduced to one repetition. See Note [Constants].
  bool follows_from_inputs() const {
    return (computes_ || reads_known_ || ranges_.has_value()) && !repeats_ && draws_ == 0 && written_.empty() &&
        received_.empty() && given_.empty();
  }

  // Saves what `finish` needs of the arguments. Must be called before they are consumed if `finish` is called later.
  void keep_arguments();

  // Runs the real operator on the known inputs and replaces the arguments on the stack by its real results. Requires
  // inputs_known().
  void run_real(Call& call) const;

  // Called after a meta call: sets the known values of outputs, and forgets those that were overwritten. If the claimed
  // device is the CPU, throws whatever the real kernel throws.
  void finish(const Call& call, c10::Device device);

 private:
  void note_written();
  void note_collective_arguments();
  at::Tensor real_argument(const FakeTensorImpl& fake, size_t arg) const;
  torch::jit::Stack real_arguments() const;
  void read_repetitions();
  bool outputs_fit(const Call& call) const;
  void check_agreement(const FakeTensorImpl& fake, const at::Tensor& real) const;
  static const FakeTensorImpl* only_output(const Call& call);
  bool run_aside(const Call& call, c10::Device device);
  void finish_repetitions(const Call& call, c10::Device device);
  void forget_written() const;
  bool reads_constants_alone() const;
  void finish_constants(const Call& call) const;
  void forget_received() const;
  void forget_made(const Call& call) const;
  void finish_written(const torch::jit::Stack& real_outputs, const Call& call) const;
  bool is_affordable(const FakeTensorImpl& fake) const;
  void finish_output(const FakeTensorImpl& fake, const at::Tensor& real) const;

  struct Written {
    c10::intrusive_ptr<c10::TensorImpl> fake;
    at::Tensor real;  // the tensor that the side run writes to
    uint16_t arg;
    bool is_new;  // `real` is not yet attached to the fake's storage
    bool is_partial;  // `real` is attached, but not all of its values were known
  };

  const Call& call_;
  const ModeState& mode_;
  const int64_t limit_;
  bool inputs_known_ = false;
  bool computes_ = false;
  bool reads_known_ = false;  // whether values of some argument are known, or read or overwritten in part
  bool has_out_ = false;
  bool makes_constants_ = false;  // only in a mode that propagates real tensors
  int64_t draws_ = 0;  // the largest number of elements to draw: see Note [Draws]
  std::optional<RangeAnswer> ranges_;  // bounds of the outputs, if their values are unknown
  bool repeats_ = false;  // real_ is one repetition of the arguments
  torch::jit::Stack real_;
  mutable c10::SmallVector<Written, 2> written_;
  std::vector<c10::intrusive_ptr<c10::TensorImpl>> received_;  // tensors that a collective writes: see collectives.h
  std::vector<c10::intrusive_ptr<c10::StorageImpl>> given_;  // storages passed to a user-defined operator
};

}  // namespace torchfake
