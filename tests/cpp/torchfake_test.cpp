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

TEST(FakeDevice, IsTheClaimedDeviceEvenInsideAKernel) {
  const at::Tensor fake = to_fake(torch::ones({2}), kCuda1);
  const InKernel in_kernel;
  EXPECT_EQ(fake_device(fake), kCuda1);
}

TEST(FakeDevice, RefusesARealTensor) {
  EXPECT_THROW(fake_device(torch::ones({2})), c10::ValueError);
}

}  // namespace torchfake::testing
