// The fake tensor: its metadata, and how views, detached copies and `.data` share it.
#include "testing.h"

#include <thread>

namespace torchfake::testing {

TEST(FakeTensorImpl, AFactoryInTheModeMakesAFake) {
  FakeMode mode;
  const at::Tensor x = torch::ones({2, 3});
  EXPECT_TRUE(is_fake(x));
  EXPECT_EQ(x.sizes(), at::IntArrayRef({2, 3}));
  EXPECT_EQ(x.scalar_type(), at::kFloat);
  EXPECT_TRUE(x.device().is_cpu());
}

TEST(FakeTensorImpl, AFakeClaimsTheDeviceItWasMadeOn) {
  FakeMode mode;
  for (const c10::Device device :
       {c10::Device("cuda:3"), c10::Device("xpu:1"), c10::Device("mps:0"), c10::Device("hpu:2")}) {
    const at::Tensor x = torch::empty({4}, on(device));
    EXPECT_EQ(x.device(), device);
    EXPECT_EQ((x + x).device(), device);
  }
}

TEST(FakeTensorImpl, AnAcceleratorWithoutAnIndexIsTheCurrentDevice) {
  FakeMode mode;
  EXPECT_EQ(torch::empty({4}, torch::kCUDA).device(), kCuda0);
  const c10::DeviceGuard guard(kCuda1);
  EXPECT_EQ(torch::empty({4}, torch::kCUDA).device(), kCuda1);
}

TEST(FakeTensorImpl, InsideAKernelAFakeAnswersMeta) {
  FakeMode mode;
  const at::Tensor x = torch::empty({4}, on(kCuda0));
  {
    const CallContext call;
    const InKernel in_kernel;
    EXPECT_TRUE(x.device().is_meta());
  }
  EXPECT_EQ(x.device(), kCuda0);
}

TEST(FakeTensorImpl, ATensorLargerThanAnyMachineTakesNoMemory) {
  FakeMode mode;
  const at::Tensor x = torch::empty({int64_t{1} << 40}, on(kCuda0).dtype(at::kDouble));
  EXPECT_EQ(x.storage().nbytes(), size_t{1} << 43);
  EXPECT_EQ((x + 1).numel(), int64_t{1} << 40);
}

TEST(FakeTensorImpl, AViewSharesItsBasesStorage) {
  FakeMode mode;
  const at::Tensor base = torch::empty({4, 6}, on(kCuda0));
  const at::Tensor row = base.select(0, 2);
  const at::Tensor turned = base.t();
  const at::Tensor part = turned.slice(0, 1, 5, 2);
  for (const at::Tensor& view : {row, turned, part, base.view({24}), base.unsqueeze(0), base.expand({2, 4, 6})}) {
    EXPECT_TRUE(is_fake(view));
    EXPECT_EQ(view.device(), kCuda0);
    EXPECT_TRUE(view.is_alias_of(base));
  }
  EXPECT_EQ(row.storage_offset(), 12);
  EXPECT_EQ(part.storage_offset(), 1);
  EXPECT_EQ(part.strides(), at::IntArrayRef({2, 6}));
  EXPECT_FALSE((base + 1).is_alias_of(base));
}

TEST(FakeTensorImpl, AnInPlaceOperatorReturnsItsInputAndBumpsTheVersionOfItsViews) {
  FakeMode mode;
  at::Tensor base = torch::empty({4}, on(kCuda0));
  const at::Tensor view = base.slice(0, 0, 2);
  const int64_t before = view._version();
  const at::Tensor& result = base.add_(1);
  EXPECT_TRUE(result.is_same(base));
  EXPECT_EQ(view._version(), before + 1);
}

TEST(FakeTensorImpl, ResizeChangesSizesInPlace) {
  FakeMode mode;
  at::Tensor x = torch::empty({4}, on(kCuda0));
  x.resize_({8, 8});
  EXPECT_EQ(x.sizes(), at::IntArrayRef({8, 8}));
  EXPECT_EQ(x.storage().nbytes(), 256);
  EXPECT_EQ(x.device(), kCuda0);
}

TEST(FakeTensorImpl, ADetachedFakeSharesStorageAndVersion) {
  FakeMode mode;
  const at::Tensor x = torch::empty({4}, on(kCuda0).requires_grad(true));
  at::Tensor detached = x.detach();
  EXPECT_TRUE(is_fake(detached));
  EXPECT_FALSE(detached.requires_grad());
  EXPECT_TRUE(detached.is_alias_of(x));
  EXPECT_EQ(detached.device(), kCuda0);
  detached.add_(1);
  EXPECT_EQ(x._version(), 1);
}

TEST(FakeTensorImpl, DataOfAFakeIsAFakeWithAVersionOfItsOwn) {
  FakeMode mode;
  const at::Tensor x = torch::empty({4}, on(kCuda0).requires_grad(true));
  at::Tensor data = x.variable_data();
  data.add_(1);
  EXPECT_TRUE(is_fake(data));
  EXPECT_TRUE(data.is_alias_of(x));
  EXPECT_EQ(x._version(), 0);
}

TEST(FakeTensorImpl, SetDataTakesTheSizesAndTheDeviceOfTheOtherFake) {
  FakeMode mode;
  at::Tensor x = torch::empty({3}, on(kCuda0));
  const at::Tensor y = torch::empty({2, 2}, on(kCuda1).dtype(at::kHalf));
  x.set_data(y);
  EXPECT_EQ(x.sizes(), at::IntArrayRef({2, 2}));
  EXPECT_EQ(x.scalar_type(), at::kHalf);
  EXPECT_EQ(x.device(), kCuda1);
  EXPECT_TRUE(x.is_alias_of(y));
}

TEST(FakeTensorImpl, SetDataBetweenRealAndFakeIsRefusedAndChangesNothing) {
  at::Tensor real = torch::ones({4});
  FakeMode mode;
  at::Tensor fake = torch::empty({2});
  EXPECT_THROW(fake.set_data(real), RealTensorError);
  EXPECT_THROW(real.set_data(fake), RealTensorError);
  EXPECT_EQ(fake.sizes(), at::IntArrayRef({2}));
  EXPECT_TRUE(is_fake(fake));
  EXPECT_FALSE(is_fake(real));
  EXPECT_EQ(real.sum().item<float>(), 4);
}

TEST(FakeTensorImpl, ATensorThatOnlyCopiedTheKeysIsNoFake) {
  FakeMode mode;
  const at::Tensor fake = torch::empty({4}, on(kCuda0));
  const auto plain = c10::make_intrusive<c10::TensorImpl>(c10::Storage(fake.storage()), fake.key_set(), fake.dtype());
  EXPECT_EQ(as_fake(plain.get()), nullptr);
}

TEST(FakeTensorImpl, AFakeMadeInInferenceModeHasNoAutogradKeys) {
  FakeMode mode;
  c10::InferenceMode inference;
  const at::Tensor x = torch::empty({4}, on(kCuda0));
  EXPECT_TRUE(x.is_inference());
  EXPECT_FALSE(x.key_set().has(c10::DispatchKey::AutogradCUDA));
  EXPECT_TRUE(is_fake(x.matmul(x)));
}

TEST(VersionCounter, OfANewFakeStandsAtZero) {
  FakeMode mode;
  for (int i = 0; i < 3; ++i) {
    const at::Tensor x = torch::ones({2});
    EXPECT_EQ(x._version(), 0);
    x.add_(1);
    EXPECT_EQ(x._version(), 1);
  }
}

TEST(VersionCounter, OutlivesItsFakeWhereSomebodyElseHasIt) {
  FakeMode mode;
  at::Tensor x = torch::ones({2});
  at::Tensor view = x.view({1, 2});
  x.add_(1);
  x.reset();
  const at::Tensor other = torch::ones({2});
  other.add_(1).add_(1);
  EXPECT_EQ(view._version(), 1);
  EXPECT_EQ(other._version(), 2);
}

TEST(VersionCounter, MayDieOnAnotherThread) {
  FakeMode mode;
  std::vector<at::Tensor> fakes(200);
  for (at::Tensor& fake : fakes) {
    fake = torch::ones({2}).add_(1);
  }
  std::thread([&] { fakes.clear(); }).join();
  EXPECT_EQ(torch::ones({2})._version(), 0);
}

}  // namespace torchfake::testing
