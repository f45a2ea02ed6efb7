// Errors: each has its own type, names the operator, and is also one of PyTorch's errors.
#include "testing.h"

namespace torchfake::testing {

TEST(Errors, CarryTheirKindAndOperator) {
  FakeMode mode(FakeModeOptions{.drawn_values = 0});
  try {
    torch::rand({1}).item();
    FAIL() << "threw nothing";
  } catch (const FakeTensorError& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kDataDependentOutput);
    EXPECT_EQ(error.op(), "aten::_local_scalar_dense");
  }
}

TEST(Errors, CanBeCaughtAsPyTorchsOwn) {
  FakeMode mode(FakeModeOptions{.drawn_values = 0});
  EXPECT_THROW(torch::rand({1}).item(), c10::Error);
  EXPECT_THROW(torch::rand({1}).item(), std::exception);
}

TEST(Errors, ARealTensorAmongFakesIsNamed) {
  const at::Tensor real = torch::ones({2}).requires_grad_();
  FakeMode mode(FakeModeOptions{.drawn_values = 0});
  const at::Tensor fake = torch::ones({2});
  const std::string message = message_of<RealTensorError>([&] { fake.add(real); });
  EXPECT_EQ(message.rfind("aten::add", 0), 0) << message;
  EXPECT_NE(message.find("'other' is a real tensor"), std::string::npos) << message;
  EXPECT_NE(message.find("to_fake"), std::string::npos) << message;
}

TEST(Errors, ARealTensorIsNotWrittenFromAFake) {
  at::Tensor real = torch::ones({2});
  FakeMode mode(FakeModeOptions{.drawn_values = 0});
  EXPECT_THROW(real.copy_(torch::zeros({2})), RealTensorError);
  EXPECT_THROW(real.add_(torch::zeros({2})), RealTensorError);
  EXPECT_EQ(real.sum().item<float>(), 2);
}

TEST(Errors, ShapesAreCheckedAsTheRealOperatorDoes) {
  FakeMode mode(FakeModeOptions{.drawn_values = 0});
  const at::Tensor x = torch::empty({2, 3}, on(kCuda0));
  EXPECT_THROW(x.matmul(x), c10::Error);
  EXPECT_THROW(x.view({7}), c10::Error);
  EXPECT_THROW(x.add(torch::empty({2, 4}, on(kCuda0))), c10::Error);
  EXPECT_THROW(x.sum(5), c10::IndexError);
}

TEST(Errors, ADeviceThatMayNotBeFakedIsNamed) {
  FakeMode mode(FakeModeOptions{.fake_cuda = false});
  const std::string message = message_of<DeviceNotFakedError>([&] { torch::empty({2}, on(kCuda1)); });
  EXPECT_NE(message.find("cuda:1"), std::string::npos) << message;
}

TEST(Errors, OtherLayoutsAreRefusedByType) {
  FakeMode mode(FakeModeOptions{.drawn_values = 0});
  EXPECT_THROW(torch::empty({2, 2}, at::TensorOptions().layout(c10::kMkldnn)), UnsupportedFakeTensorException);
}

TEST(Errors, RaiseThrowsTheTypeOfTheKind) {
  EXPECT_THROW(raise(ErrorKind::kMetadataMismatch, "aten::add", "differs"), MetadataMismatchError);
  const std::string message = message_of<UnsupportedOperatorException>(
      [] { raise(ErrorKind::kUnsupportedOperator, "aten::add", "nobody knows."); });
  EXPECT_EQ(message, "aten::add: nobody knows.");
}

namespace {

int g_shown = 0;

}  // namespace

TEST(Errors, KeepTheirTypeInsideTheEngineAndAreShownToTheHookAtItsEdge) {
  set_error_hook([](const FakeTensorError& /*error*/) { ++g_shown; });
  const auto fail = [] { at_the_boundary([] { raise(ErrorKind::kDataAccess, "aten::add", "no data."); }); };
  g_shown = 0;
  EXPECT_THROW(fail(), DataAccessError);
  EXPECT_EQ(g_shown, 1);
  CallContext call;  // now nested in a call of the engine
  EXPECT_THROW(fail(), DataAccessError);
  EXPECT_EQ(g_shown, 1);
  call.passes_python = true;  // with Python code in between
  EXPECT_THROW(fail(), DataAccessError);
  EXPECT_EQ(g_shown, 2);
  set_error_hook(nullptr);
}

TEST(Errors, AFailedInternalCheckOfPyTorchsIsAnErrorLikeAnyOther) {
  FakeMode mode(FakeModeOptions{.drawn_values = 0});
  const at::Tensor x = torch::rand({2, 3});
  const std::string message = message_of<c10::Error>([&] {
    at::Tensor out = torch::empty({0});
    std::vector<at::Tensor> outs{out, out};
    at::_foreach_abs_out(outs, {x});
  });
  EXPECT_EQ(message.find("INTERNAL ASSERT"), std::string::npos) << message;
  EXPECT_EQ(message.rfind("aten::_foreach_abs", 0), 0) << message;
}

}  // namespace torchfake::testing
