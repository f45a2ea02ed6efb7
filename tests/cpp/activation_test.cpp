// Activation: when the engine's changes to PyTorch are installed, how long they stay, and that they can be undone.
#include <torchfake/core/activation.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <thread>

#include "testing.h"

namespace torchfake::testing {

namespace {

bool has_fake_kernel() {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow("aten::add", "Tensor")
      .hasComputedKernelForDispatchKey(c10::DispatchKey::Fake);
}

bool has_guard() {
  return c10::impl::hasDeviceGuardImpl(c10::kMAIA);
}

// The calls of a change's functions, in order.
std::string g_told;

}  // namespace

TEST(Activation, AModeThatIsOnlyMadeChangesNothing) {
  ASSERT_TRUE(deactivate());
  const ModePtr mode = c10::make_intrusive<ModeState>(FakeModeOptions{});
  EXPECT_FALSE(is_active());
  EXPECT_FALSE(has_fake_kernel());
}

TEST(Activation, EnteringAModeInstallsKernelsAndGuards) {
  ASSERT_TRUE(deactivate());
  EXPECT_FALSE(has_guard());
  {
    FakeMode mode;
    EXPECT_TRUE(is_active() && has_fake_kernel() && has_guard());
    EXPECT_EQ(entered_modes(), 1);
  }
  EXPECT_TRUE(is_active() && has_fake_kernel());
  EXPECT_EQ(has_guard(), fakes_exist());
}

TEST(Activation, TheFirstFakeInstallsThemToo) {
  ASSERT_TRUE(deactivate());
  const at::Tensor fake = to_fake(torch::ones({2}), kCuda0);
  EXPECT_TRUE(is_active() && has_guard());
  EXPECT_EQ((fake + 1).device(), kCuda0);
}

TEST(Activation, GuardsGoWithTheLastFake) {
  ASSERT_FALSE(fakes_exist()) << "another test has left a fake behind";
  at::Tensor fake;
  {
    FakeMode mode;
    fake = torch::ones({2}, kCuda0);
  }
  EXPECT_TRUE(fakes_exist() && has_guard());
  at::Tensor view = fake[0];
  fake = at::Tensor();
  EXPECT_TRUE(fakes_exist() && has_guard());
  view = at::Tensor();
  EXPECT_FALSE(fakes_exist() || has_guard());
}

TEST(Activation, DeactivatingIsRefusedWhileAThreadIsInAMode) {
  FakeMode mode;
  bool done = true;
  std::thread([&] { done = deactivate(); }).join();
  EXPECT_FALSE(done);
  EXPECT_TRUE(is_active());
}

TEST(Activation, AModeOfBeforeWorksAfterDeactivating) {
  const ModePtr mode = c10::make_intrusive<ModeState>(FakeModeOptions{});
  {
    FakeMode entered(mode);
  }
  ASSERT_TRUE(deactivate());
  EXPECT_FALSE(has_fake_kernel());
  FakeMode entered(mode);
  EXPECT_TRUE(is_fake(torch::ones({2}) + 1));
}

TEST(Activation, AFakeKeepsTheGuardOfItsDeviceAfterDeactivating) {
  ASSERT_FALSE(fakes_exist()) << "another test has left a fake behind";
  at::Tensor leaf = to_fake(torch::ones({2}), kCuda0).set_requires_grad(true);
  ASSERT_TRUE(deactivate());
  EXPECT_TRUE(has_guard());
  EXPECT_THROW(leaf.sum(), c10::Error);
  leaf = at::Tensor();
  EXPECT_FALSE(has_guard());
}

TEST(Activation, ChangesAreInstalledInOrderAndRemovedInReverse) {
  ASSERT_TRUE(deactivate());
  static const RegisterChange first(Span::kOnceActive, {[] { g_told += "a"; }, [] { g_told += "A"; }});
  static const RegisterChange second(Span::kOnceActive, {[] { g_told += "b"; }, [] { g_told += "B"; }});
  static const RegisterChange entered(Span::kWhileEntered, {[] { g_told += "e"; }, [] { g_told += "E"; }});
  g_told.clear();
  {
    FakeMode outer;
    FakeMode inner;
  }
  {
    FakeMode again;
  }
  EXPECT_EQ(g_told, "abeEeE");
  ASSERT_TRUE(deactivate());
  EXPECT_EQ(g_told, "abeEeEBA");
}

TEST(Activation, AChangeThatFailsLeavesNothingHalfDone) {
  static bool fails = false;
  static const RegisterChange failing(Span::kOnceActive, {[] { TORCH_CHECK(!fails, "the change failed"); }, [] {}});
  ASSERT_TRUE(deactivate());
  fails = true;
  EXPECT_THROW(FakeMode(), c10::Error);
  fails = false;
  EXPECT_FALSE(is_active() || in_fake_mode() || has_fake_kernel());
  EXPECT_EQ(entered_modes(), 0);
  FakeMode mode;
  EXPECT_TRUE(is_fake(torch::ones({2})));
}

TEST(Activation, ThreadsMayActivateAtOnce) {
  for (int round = 0; round < 10; ++round) {
    ASSERT_TRUE(deactivate());
    std::vector<std::thread> threads;
    std::atomic<int> fakes{0};
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        FakeMode mode;
        fakes += is_fake(torch::ones({2}, kCuda0) + 1) ? 1 : 0;
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    EXPECT_EQ(fakes, 4);
  }
}

}  // namespace torchfake::testing
