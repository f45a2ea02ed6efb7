// Constant propagation: follows one call beside its kernel, and computes the values of its outputs where they are known.
#pragma once

#include <torchfake/core/call.h>
#include <torchfake/values/value_ranges.h>

namespace torchfake {

// Constructed before the kernel consumes the arguments, told of the outcome after it. See Note [Known values].
class ValueTracker {
 public:
  ValueTracker(const Call& call, const ModeState& mode);

  // Whether everything the operator reads is known.
  bool inputs_known() const {
    return inputs_known_;
  }

  // Whether the real operator is to run on what is known, all of which it was given.
  bool computes_from_inputs() const {
    return computes_ && !repeats_ && draws_ == 0;
  }

  // Keeps what `follow` needs of the arguments. To be called before they are consumed, unless `follow` is not.
  void keep_arguments();

  // Runs the real operator on the known inputs and leaves what it returned, real, on the stack in place of the
  // arguments. Requires inputs_known().
  void run_real(Call& call) const;

  // After a meta call: gives outputs their values where they are known, and ends the knowledge of what was overwritten.
  // Throws what the real kernel throws, where the claimed device is the CPU.
  void follow(const Call& call, c10::Device device);

 private:
  torch::jit::Stack real_arguments() const;
  void read_repetitions();
  bool outputs_fit(const Call& call) const;
  void check_agreement(const FakeTensorImpl& fake, const at::Tensor& real) const;
  static const FakeTensorImpl* only_output(const Call& call);
  bool run_aside(const Call& call, c10::Device device);
  void follow_repetitions(const Call& call, c10::Device device);
  void forget_written() const;
  bool reads_constants_alone() const;
  void follow_constants(const Call& call) const;
  void forget_received() const;
  void forget_made(const Call& call) const;
  void finish_written(const torch::jit::Stack& real_outputs, const Call& call) const;
  bool is_affordable(const FakeTensorImpl& fake) const;
  void finish_output(const FakeTensorImpl& fake, const at::Tensor& real) const;

  struct Written {
    c10::intrusive_ptr<c10::TensorImpl> fake;
    at::Tensor real;  // what the side run writes to
    uint16_t arg;
    bool is_new;  // `real` is not yet behind the fake's storage
    bool is_partial;  // `real` is, but not all of its values were known
  };

  const Call& call_;
  const ModeState& mode_;
  const int64_t limit_;
  bool inputs_known_ = false;
  bool computes_ = false;
  bool has_out_ = false;
  bool makes_constants_ = false;  // in a mode that propagates real tensors
  int64_t draws_ = 0;  // the most elements that are drawn: see Note [Draws]
  std::optional<RangeAnswer> ranges_;  // of the outputs, where their values do not follow
  bool repeats_ = false;  // real_ is one repetition of what the operator gets
  torch::jit::Stack real_;
  c10::SmallVector<Written, 2> written_;
  std::vector<c10::intrusive_ptr<c10::TensorImpl>> received_;  // what a collective writes: see collectives.h
  std::vector<c10::intrusive_ptr<c10::StorageImpl>> given_;  // what an operator of somebody else's got
};

}  // namespace torchfake
