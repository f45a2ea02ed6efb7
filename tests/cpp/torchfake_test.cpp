// The public functions.
#include "testing.h"

namespace torchfake::testing {

TEST(IsFake, TellsFakesFromRealMetaAndUndefinedTensors) {
  EXPECT_FALSE(is_fake(at::Tensor()));
  EXPECT_FALSE(is_fake(torch::ones({2})));
  EXPECT_FALSE(is_fake(torch::empty({2}, c10::kMeta)));
  EXPECT_TRUE(is_fake(to_fake(torch::ones({2}))));
}

TEST(MetaLike, IsMetaWithTheSameSizesStridesAndDtypeAndDetached) {
  FakeMode mode;
  const at::Tensor fake = torch::empty({2, 3}, on(kCuda0).dtype(at::kHalf).requires_grad(true)).t();
  const at::Tensor meta = meta_like(fake);
  EXPECT_FALSE(is_fake(meta));
  EXPECT_TRUE(meta.is_meta());
  EXPECT_EQ(meta.sizes(), fake.sizes());
  EXPECT_EQ(meta.strides(), fake.strides());
  EXPECT_EQ(meta.scalar_type(), at::kHalf);
  EXPECT_FALSE(meta.requires_grad());
  EXPECT_EQ(meta.grad_fn(), nullptr);
}

TEST(MetaLike, RefusesARealTensor) {
  const std::string message = message_of<c10::ValueError>([] { meta_like(torch::ones({2})); });
  EXPECT_NE(message.find("meta_like"), std::string::npos) << message;
}

TEST(Constant, KnowsTheValuesOfWhatWasMade) {
  FakeMode mode;
  const at::Tensor ids = constant([] { return torch::tensor({2, 3, 5}); });
  EXPECT_TRUE(is_fake(ids));
  EXPECT_EQ(ids.to(kCuda1).sum().item<int64_t>(), 10);
  const at::Tensor weights = constant([] { return torch::tensor({{0.5, 1.5}}, torch::requires_grad()); });
  EXPECT_TRUE(weights.requires_grad());
  EXPECT_EQ(weights[0][1].item<double>(), 1.5);
}

TEST(Constant, OutsideTheModeIsReal) {
  EXPECT_FALSE(is_fake(constant([] { return torch::tensor({2, 3}); })));
}

TEST(Constant, LeavesTheModeAsItWasWhereMakingFails) {
  FakeMode mode;
  EXPECT_THROW(constant([]() -> at::Tensor { throw std::runtime_error("no"); }), std::runtime_error);
  EXPECT_TRUE(is_fake(torch::ones({2})));
}

TEST(FakeDevice, IsTheClaimedDeviceEvenInsideAKernel) {
  const at::Tensor fake = to_fake(torch::ones({2}), kCuda1);
  const CallContext call;
  const InKernel in_kernel;
  EXPECT_EQ(fake_device(fake), kCuda1);
}

TEST(FakeDevice, RefusesARealTensor) {
  EXPECT_THROW(fake_device(torch::ones({2})), c10::ValueError);
}

}  // namespace torchfake::testing
