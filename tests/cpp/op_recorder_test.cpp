// The recorder: it is notified of every operator that a mode has handled.
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <stdexcept>

#include "testing.h"

namespace torchfake::testing {

namespace {

class Tape final : public OpRecorder {
 public:
  void on_op(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments, c10::ArrayRef<c10::IValue> outputs)
      override {
    names.push_back(op.operator_name().name);
    last_arguments.assign(arguments.begin(), arguments.end());
    last_outputs.assign(outputs.begin(), outputs.end());
    if (names.back() == refused) {
      throw std::runtime_error("refused");
    }
  }

  std::vector<std::string> names;
  std::vector<c10::IValue> last_arguments;
  std::vector<c10::IValue> last_outputs;
  std::string refused;
};

}  // namespace

TEST(OpRecorder, HearsOperatorsInTheOrderTheyWereAnswered) {
  const auto tape = std::make_shared<Tape>();
  FakeMode mode(FakeModeOptions{.recorder = tape});
  at::Tensor x = torch::empty({2, 3}, on(kCuda0));
  x.uniform_();
  const at::Tensor y = x.t().mm(x);
  EXPECT_EQ(tape->names, (std::vector<std::string>{"aten::empty", "aten::uniform_", "aten::t", "aten::mm"}));
}

TEST(OpRecorder, GetsTheArgumentsAsTheyWereCalledAndTheOutputs) {
  const auto tape = std::make_shared<Tape>();
  FakeMode mode(FakeModeOptions{.recorder = tape});
  const at::Tensor x = torch::empty({2, 3}, on(kCuda0));
  EXPECT_EQ(tape->last_arguments[3].toDevice(), kCuda0);
  const at::Tensor y = x.add(x, 2);
  ASSERT_EQ(tape->last_arguments.size(), 3);
  EXPECT_TRUE(tape->last_arguments[0].toTensor().is_same(x));
  EXPECT_EQ(tape->last_arguments[2].toScalar().toInt(), 2);
  ASSERT_EQ(tape->last_outputs.size(), 1);
  // Above this layer, autograd may put the result in another tensor; the storage is the same.
  EXPECT_TRUE(tape->last_outputs[0].toTensor().is_alias_of(y));
}

TEST(OpRecorder, HearsNothingOfOperatorsThatFail) {
  const auto tape = std::make_shared<Tape>();
  FakeMode mode(FakeModeOptions{.recorder = tape});
  const at::Tensor x = torch::empty({2, 3}, on(kCuda0));
  tape->names.clear();
  EXPECT_THROW(x.mm(x), c10::Error);
  EXPECT_TRUE(tape->names.empty());
}

TEST(OpRecorder, FailsTheCallByThrowing) {
  const auto tape = std::make_shared<Tape>();
  tape->refused = "aten::mm";
  FakeMode mode(FakeModeOptions{.recorder = tape});
  const at::Tensor x = torch::empty({3, 3}, on(kCuda0));
  EXPECT_THROW(x.mm(x), std::runtime_error);
  EXPECT_NO_THROW(x + x);
}

TEST(OpRecorder, HearsOfConstantsThatEnterTheMode) {
  const auto tape = std::make_shared<Tape>();
  const at::Tensor real = torch::ones({2});
  FakeMode mode(FakeModeOptions{.recorder = tape});
  const at::Tensor fake = at::lift_fresh(real);
  EXPECT_EQ(tape->names, std::vector<std::string>{"aten::lift_fresh"});
  EXPECT_TRUE(tape->last_arguments[0].toTensor().is_same(real));
  EXPECT_TRUE(tape->last_outputs[0].toTensor().is_alias_of(fake));
}

TEST(OpRecorder, HearsOfWritesToAnArgument) {
  const auto tape = std::make_shared<Tape>();
  FakeMode mode(FakeModeOptions{.recorder = tape});
  at::Tensor x = torch::zeros({2});
  x.add_(1);
  EXPECT_EQ(tape->names.back(), "aten::add_");
  EXPECT_TRUE(tape->last_outputs[0].toTensor().is_alias_of(x));
}

// Where autocast casts, the rule of trace computes a sum over the diagonal.
TEST(OpRecorder, HearsNothingOfWhatARuleCalls) {
  const auto tape = std::make_shared<Tape>();
  FakeMode mode(FakeModeOptions{.recorder = tape});
  const at::Tensor x = torch::empty({3, 3}, on(kCuda0).dtype(at::kHalf));
  tape->names.clear();
  at::autocast::set_autocast_enabled(at::kCUDA, true);
  x.trace();
  at::autocast::set_autocast_enabled(at::kCUDA, false);
  EXPECT_EQ(tape->names, std::vector<std::string>{"aten::trace"});
}

}  // namespace torchfake::testing
