// Known values: what is derived from small constants has correct values, and nothing else has any.
#include <torchfake/values/known_values.h>

#include "testing.h"

namespace torchfake::testing {

namespace {

bool is_known(const at::Tensor& tensor) {
  return known_tensor(*as_fake(tensor), 1 << 20).has_value();
}

}  // namespace

TEST(KnownValues, ConstantsAnswerItem) {
  FakeMode mode(FakeModeOptions{.drawn_values = 0});
  EXPECT_EQ(torch::full({1}, 7).item<int64_t>(), 7);
  EXPECT_EQ(torch::ones({2, 3}).sum().item<float>(), 6);
  EXPECT_EQ(torch::arange(10).max().item<int64_t>(), 9);
  EXPECT_FLOAT_EQ(torch::linspace(0, 1, 5)[1].item<float>(), 0.25);
  EXPECT_TRUE(torch::zeros({3}).eq(0).all().item<bool>());
}

TEST(KnownValues, AnswerOnAClaimedDeviceToo) {
  FakeMode mode(FakeModeOptions{.drawn_values = 0});
  const at::Tensor x = torch::arange(10, on(kCuda1)) * 2;
  EXPECT_EQ(x.device(), kCuda1);
  EXPECT_EQ(x.sum().item<int64_t>(), 90);
  EXPECT_EQ(x.to(c10::kCPU)[4].item<int64_t>(), 8);
}

TEST(KnownValues, AViewKnowsItsPartOfTheBase) {
  FakeMode mode(FakeModeOptions{.drawn_values = 0});
  const at::Tensor x = torch::arange(12).view({3, 4});
  EXPECT_EQ(x.t()[1].sum().item<int64_t>(), 1 + 5 + 9);
  EXPECT_EQ(x.select(0, 2).slice(0, 1, 3).sum().item<int64_t>(), 9 + 10);
}

TEST(KnownValues, AWriteToAViewIsSeenByTheBase) {
  FakeMode mode(FakeModeOptions{.drawn_values = 0});
  const at::Tensor x = torch::ones({2, 4}, on(kCuda0));
  x.slice(1, 0, 2).zero_();
  EXPECT_EQ(x.sum().item<float>(), 4);
  EXPECT_FALSE(x.all().item<bool>());
  x.select(0, 0).add_(torch::arange(4, on(kCuda0)));
  EXPECT_EQ(x.sum().item<float>(), 10);
}

TEST(KnownValues, CopyTakesThemAlong) {
  FakeMode mode(FakeModeOptions{.drawn_values = 0});
  at::Tensor x = torch::empty({3}, on(kCuda0));
  EXPECT_FALSE(is_known(x));
  x.copy_(torch::arange(3));
  EXPECT_EQ(x.sum().item<float>(), 3);
}

TEST(KnownValues, RandomAndUninitialisedDataIsNeverKnown) {
  FakeMode mode(FakeModeOptions{.drawn_values = 0});
  EXPECT_FALSE(is_known(torch::rand({2})));
  EXPECT_FALSE(is_known(torch::empty({2})));
  EXPECT_FALSE(is_known(torch::randperm(4)));
  EXPECT_FALSE(is_known(torch::ones({2}) * torch::rand({2})));
  EXPECT_FALSE(is_known(at::empty_like(torch::ones({2}))));
}

TEST(KnownValues, AWriteOfSomethingUnknownEndsThemForAllViews) {
  FakeMode mode(FakeModeOptions{.drawn_values = 0});
  const at::Tensor x = torch::ones({4});
  const at::Tensor part = x.slice(0, 0, 2);
  EXPECT_TRUE(is_known(part));
  x.slice(0, 2, 4).mul_(torch::rand({2}));
  EXPECT_FALSE(is_known(part));
  EXPECT_THROW(part.sum().item(), DataDependentOutputException);
}

TEST(KnownValues, ARandomFillEndsThemAndAConstantFillBringsThemBack) {
  FakeMode mode(FakeModeOptions{.drawn_values = 0});
  at::Tensor x = torch::ones({4});
  x.uniform_();
  EXPECT_FALSE(is_known(x));
  x.fill_(3);
  EXPECT_EQ(x.sum().item<float>(), 12);
}

TEST(KnownValues, GiveTheShapeOfNonzeroAndOfAMaskedSelection) {
  FakeMode mode(FakeModeOptions{.drawn_values = 0});
  const at::Tensor mask = torch::arange(10, on(kCuda0)).remainder(3).eq(0);
  const at::Tensor where = mask.nonzero();
  EXPECT_EQ(where.sizes(), at::IntArrayRef({4, 1}));
  EXPECT_EQ(where.device(), kCuda0);
  EXPECT_EQ(where.sum().item<int64_t>(), 18);
  EXPECT_EQ(torch::rand({10}, on(kCuda0)).masked_select(mask).sizes(), at::IntArrayRef({4}));
}

TEST(KnownValues, WithoutThemADynamicShapeIsATypedError) {
  FakeMode mode(FakeModeOptions{.drawn_values = 0});
  const at::Tensor x = torch::rand({10}, on(kCuda0));
  const std::string message = message_of<DynamicOutputShapeException>([&] { x.nonzero(); });
  EXPECT_EQ(message.rfind("aten::nonzero", 0), 0) << message;
  EXPECT_THROW(x.masked_select(x > 0), DynamicOutputShapeException);
}

TEST(KnownValues, WithoutThemAValueIsATypedError) {
  FakeMode mode(FakeModeOptions{.drawn_values = 0});
  const std::string message = message_of<DataDependentOutputException>([&] { torch::rand({1}).item<float>(); });
  EXPECT_EQ(message.rfind("aten::_local_scalar_dense", 0), 0) << message;
}

TEST(KnownValues, EndAboveTheModesLimit) {
  FakeMode mode(FakeModeOptions{.known_values = 8});
  EXPECT_TRUE(is_known(torch::ones({8})));
  EXPECT_FALSE(is_known(torch::ones({9})));
  EXPECT_FALSE(is_known(torch::arange(9)));
}

TEST(KnownValues, EndWhereAllTogetherAreTooMany) {
  FakeModeOptions options;
  const size_t before = known_bytes_in_use();
  options.known_bytes = before + 3000;
  const FakeMode mode(options);
  for (int i = 0; i < 3; ++i) {  // from the kernel, from the cache, from the constant in the cache
    std::vector<at::Tensor> fakes;
    for (int j = 0; j < 4; ++j) {
      fakes.push_back(at::ones({250}));
    }
    EXPECT_EQ(fakes[2][0].item().toDouble(), 1.0);
    EXPECT_THROW(fakes[3][0].item(), DataDependentOutputException);
    EXPECT_EQ(known_bytes_in_use(), before + 3000);
    fakes[1].add_(fakes[3]);  // unknown: frees its bytes for another fake, once nothing holds them
    fakes.erase(fakes.begin(), fakes.begin() + 2);
    EXPECT_EQ((fakes[0] + 1)[0].item().toDouble(), 2.0);
  }
  EXPECT_EQ(known_bytes_in_use(), before);
}

TEST(KnownValues, AreNotKeptWithALimitOfZero) {
  FakeMode mode(FakeModeOptions{.known_values = 0});
  EXPECT_FALSE(is_known(torch::ones({1})));
  EXPECT_THROW(torch::ones({1}).item(), DataDependentOutputException);
}

TEST(KnownValues, FollowTypePromotionAndScalars) {
  FakeMode mode(FakeModeOptions{.drawn_values = 0});
  const at::Tensor x = torch::arange(3) + 0.5;
  EXPECT_EQ(x.scalar_type(), at::kFloat);
  EXPECT_FLOAT_EQ(x.sum().item<float>(), 4.5);
}

TEST(KnownValues, EndWhenTheStorageIsResized) {
  FakeMode mode(FakeModeOptions{.drawn_values = 0});
  at::Tensor x = torch::ones({4});
  x.resize_({16});
  EXPECT_FALSE(is_known(x));
}

TEST(RealValues, TravelAlongOnADeviceThatHasKernelsOfItsOwn) {
  FakeMode mode(FakeModeOptions{.propagate_real_tensors = true});
  const at::Tensor x = torch::randn({1, 2, 4, 8}, on(kCuda1)).requires_grad_();
  const at::Tensor y = at::scaled_dot_product_attention(x, x, torch::ones_like(x));
  y.sum().backward();
  EXPECT_EQ(y.device(), kCuda1);
  EXPECT_NEAR(y.min().item<float>(), 1, 1e-5) << "means of ones";
  EXPECT_NEAR(x.grad().abs().max().item<float>(), 0, 1e-4);
}

TEST(RealValues, AreNoneOfAFakeModesOwn) {
  FakeMode mode(FakeModeOptions{.drawn_values = 0});
  const at::Tensor x = torch::randn({1, 2, 4, 8}, on(kCuda1));
  EXPECT_FALSE(is_known(at::scaled_dot_product_attention(x, x, torch::ones_like(x))));
}

}  // namespace torchfake::testing
