// Calls determined by values: results computed from known values, and constants that enter the mode.
#include <torchfake/dispatch/known_answers.h>

#include <torchfake/core/errors.h>
#include <torchfake/core/to_fake.h>
#include <torchfake/dispatch/meta_call.h>
#include <torchfake/dispatch/wrap_outputs.h>
#include <torchfake/values/known_values.h>
#include <torchfake/values/value_tracker.h>

namespace torchfake {

namespace {

// Memorises the result: its value, or its size if it is a tensor.
void remember_answer(FakeTensorImpl& asked, const OpTraits& traits, const c10::IValue& answer) {
  if (traits.memo) {
    asked.set_memo(*traits.memo, answer.isTensor() ? c10::Scalar(answer.toTensor().size(0)) : answer.toScalar());
  }
}

}  // namespace

void answer_from_values(Call& call, const ValueTracker& values, c10::Device device, const ModePtr& mode) {
  const auto asked = c10::intrusive_ptr<c10::TensorImpl>::unsafe_reclaim_from_nonowning(call.tensors()[0].impl);
  std::vector<at::Tensor> outs;
  for (const TensorArg& tensor : call.tensors()) {
    if (tensor.is_out) {
      outs.emplace_back(c10::intrusive_ptr<c10::TensorImpl>::unsafe_reclaim_from_nonowning(tensor.impl));
    }
  }
  values.run_real(call);
  const size_t first = call.stack->size() - call.traits.num_returns;
  for (size_t i = first; i < call.stack->size(); ++i) {
    c10::IValue& value = (*call.stack)[i];
    if (i - first < outs.size()) {
      lay_out_as(outs[i - first], value.toTensor());
      value = outs[i - first];
      continue;
    }
    if (value.isTensor() && value.toTensor().defined()) {
      at::Tensor real = value.toTensor();
      at::Tensor fake = to_fake(real, mode, device);
      if (real.numel() <= value_limit(mode->options)) {
        // The fake's storage is laid out like the real one, which has no other owner.
        set_known_bytes(fake.storage().unsafeGetStorageImpl(), device, real.storage().getWeakStorageImpl().lock());
      }
      value = std::move(fake);
    }
  }
  if (FakeTensorImpl* fake = as_fake(asked.get())) {
    remember_answer(*fake, call.traits, (*call.stack)[first]);
  }
}

void refuse_unknown_values(const Call& call) {
  if (call.traits.data_dependent) {
    raise(
        ErrorKind::kDataDependentOutput,
        call.op_name(),
        "the result is a value, which this fake tensor does not have. Values are known only if they are derived from "
        "small constants; keep this branch out of the fake run, pass the value in, or propagate real values "
        "(propagate_real_tensors).");
  }
  raise(
      ErrorKind::kDynamicOutputShape,
      call.op_name(),
      "the shape of the result depends on values, which this fake tensor does not have. Values are known only if they "
      "are derived from small constants; use an operator whose output has a fixed shape, or propagate real values "
      "(propagate_real_tensors).");
}

void lift_argument(Call& call, const ModePtr& mode) {
  at::Tensor fake = lift(call.arg(0).toTensor(), mode, call.traits.lift == Lift::kCopied);
  torch::jit::drop(*call.stack, call.num_args());
  call.stack->emplace_back(std::move(fake));
}

// The arguments are real tensors, and the results are constants. A number on the meta device has no value to keep.
void answer_for_numbers(Call& call, const ModePtr& mode) {
  const size_t first = call.stack->size() - call.num_args();
  real_call(call);
  for (size_t i = first; i < call.stack->size(); ++i) {
    c10::IValue& value = (*call.stack)[i];
    if (!value.isTensor() || !value.toTensor().defined() || as_fake(value.toTensor()) != nullptr) {
      continue;
    }
    if (mode->options.exclusive || !value.toTensor().is_meta()) {
      value = lift(value.toTensor(), mode, /*copy=*/false);
    }
  }
}

}  // namespace torchfake
