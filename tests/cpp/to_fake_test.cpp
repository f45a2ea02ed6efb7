// Converting real and meta tensors to fakes, preserving aliases.
#include "testing.h"

namespace torchfake::testing {

TEST(ToFake, TakesSizesStridesOffsetAndDtype) {
  const at::Tensor real = torch::ones({4, 6}, at::kDouble).t().slice(0, 1, 5, 2);
  const at::Tensor fake = to_fake(real);
  EXPECT_TRUE(is_fake(fake));
  EXPECT_EQ(fake.sizes(), real.sizes());
  EXPECT_EQ(fake.strides(), real.strides());
  EXPECT_EQ(fake.storage_offset(), real.storage_offset());
  EXPECT_EQ(fake.scalar_type(), at::kDouble);
  EXPECT_TRUE(fake.device().is_cpu());
}

TEST(ToFake, ClaimsTheDeviceItIsGiven) {
  const at::Tensor fake = to_fake(torch::ones({4}), kCuda1);
  EXPECT_EQ(fake.device(), kCuda1);
  EXPECT_EQ(to_fake(torch::ones({4}), c10::Device(c10::kCUDA)).device(), kCuda0);
}

TEST(ToFake, KeepsAliases) {
  const at::Tensor real = torch::ones({4, 4});
  const at::Tensor base = to_fake(real);
  const at::Tensor view = to_fake(real.t());
  EXPECT_TRUE(view.is_alias_of(base));
  EXPECT_FALSE(to_fake(real.clone()).is_alias_of(base));
  EXPECT_FALSE(to_fake(real, kCuda0).is_alias_of(base));
}

TEST(ToFake, ForgetsAStorageThatIsGone) {
  const void* first = nullptr;
  {
    const at::Tensor real = torch::ones({4});
    first = storage_of(to_fake(real));
  }
  const at::Tensor kept = to_fake(torch::ones({8}));
  EXPECT_EQ(kept.storage().nbytes(), 32);
  (void)first;
}

TEST(ToFake, TakesRequiresGradAlong) {
  EXPECT_TRUE(to_fake(torch::ones({4}, at::requires_grad())).requires_grad());
  EXPECT_TRUE(to_fake(torch::ones({4}, at::requires_grad())).is_leaf());
  EXPECT_FALSE(to_fake(torch::ones({4})).requires_grad());
}

TEST(ToFake, AMetaTensorClaimsTheCpuUnlessToldOtherwise) {
  const at::Tensor meta = torch::empty({4}, c10::kMeta);
  EXPECT_TRUE(to_fake(meta).device().is_cpu());
  EXPECT_EQ(to_fake(meta, kCuda0).device(), kCuda0);
}

TEST(ToFake, AFakeComesBackAsItIs) {
  FakeMode mode;
  const at::Tensor fake = torch::ones({4});
  EXPECT_TRUE(to_fake(fake).is_same(fake));
}

TEST(ToFake, KeepsTheLayoutOfSparseTensors) {
  const at::Tensor fake = to_fake(torch::eye(3).to_sparse());
  EXPECT_TRUE(fake.is_sparse());
  EXPECT_TRUE(is_fake(fake));
  EXPECT_EQ(fake._nnz(), 3);
  EXPECT_TRUE(is_fake(fake._indices()));
  EXPECT_EQ(fake.to_dense().sizes(), at::IntArrayRef({3, 3}));
}

TEST(ToFake, RefusesNestedTensors) {
  const at::Tensor nested = torch::_nested_tensor_from_tensor_list({torch::ones({2}), torch::ones({3})});
  EXPECT_THROW(to_fake(nested), UnsupportedFakeTensorException);
}

TEST(ToFake, LeavesTheRealTensorAlone) {
  const at::Tensor real = torch::ones({4});
  to_fake(real).add_(1);
  EXPECT_EQ(real.sum().item<float>(), 4);
  EXPECT_FALSE(is_fake(real));
}

}  // namespace torchfake::testing
