// The mode: where it applies, how it nests and propagates to other threads, and that it leaves nothing behind.
#include <ATen/ThreadLocalState.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <future>
#include <stdexcept>
#include <thread>

#include "testing.h"

namespace torchfake::testing {

TEST(FakeMode, OutsideTheModeTensorsAreReal) {
  EXPECT_FALSE(is_fake(torch::ones({2})));
  EXPECT_FALSE(in_fake_mode());
  EXPECT_EQ(current_mode(), nullptr);
}

TEST(FakeMode, TensorsOfLibtorchsOwnFactoriesAreFake) {
  FakeMode mode;
  EXPECT_TRUE(in_fake_mode());
  EXPECT_EQ(current_mode(), mode.state());
  for (const at::Tensor& x :
       {torch::zeros({2}),
        torch::empty({2}),
        torch::rand({2}),
        torch::randn({2}),
        torch::full({2}, 7),
        torch::eye(2),
        torch::arange(5),
        torch::linspace(0, 1, 5),
        torch::randint(3, {2}),
        torch::randperm(4),
        at::empty_strided({2, 2}, {1, 2}),
        at::scalar_tensor(3)}) {
    EXPECT_TRUE(is_fake(x));
  }
}

TEST(FakeMode, TheInnermostModesOptionsHold) {
  FakeMode outer;
  EXPECT_NO_THROW(torch::empty({2}, on(kCuda0)));
  {
    FakeMode inner(FakeModeOptions{.fake_cuda = false});
    EXPECT_EQ(current_mode(), inner.state());
    EXPECT_THROW(torch::empty({2}, on(kCuda0)), DeviceNotFakedError);
    EXPECT_TRUE(is_fake(torch::empty({2})));
  }
  EXPECT_EQ(current_mode(), outer.state());
  EXPECT_NO_THROW(torch::empty({2}, on(kCuda0)));
}

TEST(FakeMode, NoFakeModeSuspendsTheMode) {
  FakeMode mode;
  {
    NoFakeMode real;
    EXPECT_FALSE(in_fake_mode());
    EXPECT_EQ(current_mode(), nullptr);
    EXPECT_EQ(torch::ones({2}).sum().item<float>(), 2);
    {
      FakeMode again;
      EXPECT_TRUE(is_fake(torch::ones({2})));
    }
    EXPECT_FALSE(is_fake(torch::ones({2})));
  }
  EXPECT_TRUE(is_fake(torch::ones({2})));
}

TEST(FakeMode, AnExceptionLeavesNoModeBehind) {
  const auto keys = c10::impl::tls_local_dispatch_key_set().included_;
  EXPECT_THROW(
      {
        FakeMode mode;
        throw std::runtime_error("out");
      },
      std::runtime_error);
  EXPECT_FALSE(in_fake_mode());
  EXPECT_TRUE(c10::impl::tls_local_dispatch_key_set().included_ == keys);
}

TEST(FakeMode, AnOperatorThatFailsLeavesTheModeAsItWas) {
  FakeMode mode;
  const at::Tensor x = torch::empty({2, 3}, on(kCuda0));
  const auto keys = c10::impl::tls_local_dispatch_key_set().included_;
  EXPECT_THROW(x.matmul(x), c10::Error);
  EXPECT_TRUE(c10::impl::tls_local_dispatch_key_set().included_ == keys);
  EXPECT_FALSE(InKernel::active());
  EXPECT_EQ(x.device(), kCuda0);
  EXPECT_EQ(x.matmul(x.t()).sizes(), at::IntArrayRef({2, 2}));
}

TEST(FakeMode, AFakeWorksOnAfterItsModeWasLeft) {
  at::Tensor x;
  {
    FakeMode mode;
    x = torch::empty({2, 3}, on(kCuda1));
  }
  const at::Tensor y = x.t().matmul(x) + 1;
  EXPECT_TRUE(is_fake(y));
  EXPECT_EQ(y.device(), kCuda1);
  EXPECT_EQ(y.sizes(), at::IntArrayRef({3, 3}));
  EXPECT_FALSE(is_fake(torch::ones({2})));
}

TEST(FakeMode, RealTensorsStayRealAmongThemselves) {
  const at::Tensor real = torch::ones({2});
  FakeMode mode;
  const at::Tensor sum = real + real;
  EXPECT_FALSE(is_fake(sum));
  EXPECT_EQ(sum.sum().item<float>(), 4);
}

TEST(FakeMode, EachThreadHasItsOwn) {
  FakeMode mode;
  bool fake = true;
  std::thread([&] { fake = is_fake(torch::ones({2})); }).join();
  EXPECT_FALSE(fake);
  std::thread([&] {
    FakeMode own;
    fake = is_fake(torch::ones({2}));
  }).join();
  EXPECT_TRUE(fake);
}

TEST(FakeMode, TravelsWithPyTorchsThreadLocalState) {
  FakeMode mode;
  const at::ThreadLocalState state;
  bool fake = false;
  ModePtr seen;
  std::thread([&] {
    const at::ThreadLocalStateGuard guard(state);
    fake = is_fake(torch::ones({2}));
    seen = current_mode();
  }).join();
  EXPECT_TRUE(fake);
  EXPECT_EQ(seen, mode.state());
}

TEST(FakeMode, FakesMayBeUsedFromSeveralThreadsAtOnce) {
  FakeMode mode;
  const at::Tensor x = torch::empty({64, 64}, on(kCuda0));
  std::vector<std::future<int>> threads;
  for (int i = 0; i < 8; ++i) {
    threads.push_back(std::async(std::launch::async, [&] {
      FakeMode own;
      int right = 0;
      for (int step = 0; step < 200; ++step) {
        const at::Tensor y = (x.matmul(x) + torch::ones({64}, on(kCuda0))).tanh().t();
        right += y.device() == kCuda0 && y.size(0) == 64;
      }
      return right;
    }));
  }
  for (std::future<int>& thread : threads) {
    EXPECT_EQ(thread.get(), 200);
  }
}

TEST(FakeMode, CanBeEnteredAgainThroughItsState) {
  ModePtr state;
  {
    FakeMode mode(FakeModeOptions{.known_values = 3});
    state = mode.state();
  }
  FakeMode again(state);
  EXPECT_EQ(current_mode(), state);
  EXPECT_EQ(current_mode()->options.known_values, 3);
}

}  // namespace torchfake::testing
