// Draws, stand-ins, and the number of cards.
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <torchfake/core/fake_mode.h>
#include <torchfake/values/known_values.h>

#include "testing.h"

namespace torchfake::testing {

namespace {

bool is_known(const at::Tensor& tensor) {
  return torchfake::is_known(*as_fake(tensor), 16384);
}

class Heard final : public StandIns {
 public:
  void on_answer(const std::string& op, std::string_view answer) override {
    answers.push_back(op + " " + std::string(answer));
  }
  std::vector<std::string> answers;
};

}  // namespace

TEST(Draws, SmallResultsAreDrawnAndLargeOnesAreNot) {
  FakeMode mode;
  EXPECT_TRUE(is_known(torch::rand({8, 8})));
  EXPECT_TRUE(is_known(torch::rand({3}, on(kCuda0))));
  EXPECT_TRUE(is_known(torch::empty({4}).normal_()));
  EXPECT_FALSE(is_known(torch::rand({65})));
  EXPECT_FALSE(is_known(torch::empty({65}).normal_()));
  EXPECT_FALSE(is_known(torch::bernoulli(torch::rand({100}).slice(0, 0, 4))));
}

TEST(Draws, RepeatWithTheirSeedAndLeaveTheDefaultGeneratorAsItWas) {
  torch::manual_seed(5);
  const at::Tensor real = torch::rand({4});
  torch::manual_seed(5);
  const at::Tensor before = at::detail::getDefaultCPUGenerator().get_state();
  {
    FakeMode mode;
    for (int64_t i = 0; i < 4; ++i) {
      EXPECT_EQ(torch::rand({1}).item<float>(), real[i].item<float>());
    }
  }
  EXPECT_TRUE(before.equal(at::detail::getDefaultCPUGenerator().get_state()));
}

TEST(Draws, OutsideTheModeAFakeDrawsNothing) {
  at::Tensor fake;
  {
    FakeMode mode;
    fake = torch::empty({4});
  }
  const at::Tensor before = at::detail::getDefaultCPUGenerator().get_state();
  EXPECT_FALSE(is_known(fake.normal_()));
  EXPECT_TRUE(before.equal(at::detail::getDefaultCPUGenerator().get_state()));
}

TEST(StandIns, AnswerAndTell) {
  const auto heard = std::make_shared<Heard>();
  FakeModeOptions options;
  options.stand_ins = heard;
  FakeMode mode(options);
  const at::Tensor x = torch::rand({100}, on(kCuda0));
  EXPECT_EQ(x.sum().item<float>(), 1.0F);
  EXPECT_FALSE((x.sum() > 3).item<bool>());
  EXPECT_EQ(x.nonzero().size(0), 100);
  EXPECT_TRUE(torch::isfinite(x).all().item<bool>());
  EXPECT_EQ(heard->answers.size(), 4);
  EXPECT_EQ(heard->answers.front(), "aten::_local_scalar_dense 1.0");
}

TEST(Cards, AnIndexBeyondTheLastIsRefused) {
  FakeMode mode(FakeModeOptions{.cards = 1});
  torch::empty({1}, on(kCuda0));
  EXPECT_THROW(torch::empty({1}, on(kCuda1)), c10::AcceleratorError);
}

}  // namespace torchfake::testing
