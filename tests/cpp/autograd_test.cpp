// Autograd on absent devices.
#include "testing.h"

namespace torchfake::testing {

namespace {

at::Tensor leaf(at::IntArrayRef sizes, c10::Device device) {
  return torch::empty(sizes, on(device).requires_grad(true));
}

}  // namespace

TEST(Autograd, BackwardLeavesGradientsOnTheClaimedDevice) {
  FakeMode mode;
  for (const c10::Device device : {c10::Device(c10::kCPU), kCuda0, kCuda1, c10::Device("xpu:0")}) {
    const at::Tensor weight = leaf({3, 2}, device);
    torch::rand({5, 3}, on(device)).matmul(weight).tanh().sum().backward();
    ASSERT_TRUE(weight.grad().defined());
    EXPECT_TRUE(is_fake(weight.grad()));
    EXPECT_EQ(weight.grad().device(), device);
    EXPECT_EQ(weight.grad().sizes(), weight.sizes());
  }
}

TEST(Autograd, BackwardCrossesDevices) {
  FakeMode mode;
  const at::Tensor first = leaf({4, 4}, kCuda0);
  const at::Tensor second = leaf({4, 4}, kCuda1);
  const at::Tensor hidden = torch::rand({2, 4}, on(kCuda0)).matmul(first).to(kCuda1);
  hidden.matmul(second).cpu().sum().backward();
  EXPECT_EQ(first.grad().device(), kCuda0);
  EXPECT_EQ(second.grad().device(), kCuda1);
}

TEST(Autograd, GradientsAddUp) {
  FakeMode mode;
  const at::Tensor x = leaf({4}, kCuda0);
  (x * 2).sum().backward();
  const at::Tensor first = x.grad();
  (x * 3).sum().backward();
  EXPECT_TRUE(x.grad().is_same(first));
  EXPECT_EQ(first._version(), 1);
}

TEST(Autograd, GradOfAGradHasAShapeToo) {
  FakeMode mode;
  const at::Tensor x = leaf({4}, kCuda1);
  const at::Tensor y = (x * x * x).sum();
  const at::Tensor gradient = torch::autograd::grad({y}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0];
  EXPECT_TRUE(gradient.requires_grad());
  const at::Tensor second = torch::autograd::grad({gradient.sum()}, {x})[0];
  EXPECT_EQ(second.sizes(), x.sizes());
  EXPECT_EQ(second.device(), kCuda1);
}

TEST(Autograd, HooksSeeFakes) {
  FakeMode mode;
  const at::Tensor x = leaf({4}, kCuda0);
  bool fake = false;
  x.register_hook([&](const at::Tensor& gradient) { fake = is_fake(gradient) && gradient.device() == kCuda0; });
  (x * 2).sum().backward();
  EXPECT_TRUE(fake);
}

TEST(Autograd, AChangeOfASavedTensorIsStillFound) {
  FakeMode mode;
  const at::Tensor x = leaf({4}, kCuda0);
  at::Tensor y = x * 1;
  const at::Tensor z = (y * y).sum();
  y.add_(1);
  EXPECT_THROW(z.backward(), c10::Error);
}

TEST(Autograd, AFailingBackwardLeavesTheModeAsItWas) {
  FakeMode mode;
  const at::Tensor x = leaf({4}, kCuda0);
  EXPECT_THROW((x * 2).backward(), c10::Error);  // not a scalar
  (x * 2).sum().backward();
  EXPECT_EQ(x.grad().device(), kCuda0);
}

TEST(Autograd, NoGradRecordsNothing) {
  FakeMode mode;
  const torch::NoGradGuard no_grad;
  EXPECT_FALSE((leaf({4}, kCuda0) * 2).requires_grad());
}

}  // namespace torchfake::testing
