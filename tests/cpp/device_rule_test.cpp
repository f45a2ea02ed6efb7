// Which device a result claims, and which inputs cannot be combined.
#include "testing.h"

namespace torchfake::testing {

TEST(DeviceRule, AResultClaimsTheDeviceOfItsInputs) {
  FakeMode mode;
  const at::Tensor x = torch::empty({2, 2}, on(kCuda1));
  EXPECT_EQ((x + x).device(), kCuda1);
  EXPECT_EQ(x.matmul(x).sum().device(), kCuda1);
  EXPECT_EQ(at::cat({x, x}).device(), kCuda1);
}

TEST(DeviceRule, TwoDevicesInOneOperatorAreATypedErrorThatNamesBoth) {
  FakeMode mode;
  const at::Tensor x = torch::empty({2}, on(kCuda0));
  const at::Tensor y = torch::empty({2});
  const std::string message = message_of<DeviceMismatchError>([&] { x.add(y); });
  EXPECT_EQ(message.rfind("aten::add", 0), 0) << message;
  EXPECT_NE(message.find("'self' claims cuda:0"), std::string::npos) << message;
  EXPECT_NE(message.find("'other' claims cpu"), std::string::npos) << message;
  EXPECT_THROW(x.add(torch::empty({2}, on(kCuda1))), DeviceMismatchError);
}

TEST(DeviceRule, AMismatchInAListNamesTheElement) {
  FakeMode mode;
  const at::Tensor x = torch::empty({2}, on(kCuda0));
  const std::string message = message_of<DeviceMismatchError>([&] { at::cat({x, x, torch::empty({2})}); });
  EXPECT_NE(message.find("element 2 of argument 'tensors'"), std::string::npos) << message;
}

TEST(DeviceRule, AMismatchChangesNothing) {
  FakeMode mode;
  at::Tensor x = torch::ones({2}, on(kCuda0));
  EXPECT_THROW(x.add_(torch::ones({2})), DeviceMismatchError);
  EXPECT_EQ(x.sum().item<float>(), 2);
}

TEST(DeviceRule, ACpuScalarGoesAlongWithAnyDevice) {
  FakeMode mode;
  const at::Tensor x = torch::empty({2}, on(kCuda1));
  const at::Tensor scalar = torch::ones({});
  EXPECT_EQ((x * scalar).device(), kCuda1);
  EXPECT_EQ((scalar * x).device(), kCuda1);
  EXPECT_EQ((x * 2).device(), kCuda1);
  EXPECT_EQ((scalar * 2).device(), c10::Device(c10::kCPU));
}

TEST(DeviceRule, ACudaScalarDoesNotGoAlongWithTheCpu) {
  FakeMode mode;
  EXPECT_THROW(torch::empty({2}).mul(torch::empty({}, on(kCuda0))), DeviceMismatchError);
}

TEST(DeviceRule, ACpuScalarCannotBeWrittenFromAnotherDevice) {
  FakeMode mode;
  at::Tensor scalar = torch::zeros({});
  EXPECT_THROW(scalar.add_(torch::ones({}, on(kCuda0))), DeviceMismatchError);
}

TEST(DeviceRule, IndicesMayComeFromTheCpu) {
  FakeMode mode;
  const at::Tensor x = torch::empty({4, 3}, on(kCuda0));
  const at::Tensor rows = torch::arange(2);
  EXPECT_EQ(x.index({rows}).device(), kCuda0);
  EXPECT_EQ(x.index({rows}).sizes(), at::IntArrayRef({2, 3}));
  EXPECT_THROW(torch::empty({4}).index({torch::arange(2, on(kCuda0))}), DeviceMismatchError);
}

TEST(DeviceRule, CopyAndToCrossDevices) {
  FakeMode mode;
  at::Tensor x = torch::empty({2}, on(kCuda0));
  EXPECT_EQ(x.copy_(torch::ones({2})).device(), kCuda0);
  EXPECT_EQ(x.to(kCuda1).device(), kCuda1);
  EXPECT_TRUE(x.cpu().device().is_cpu());
  EXPECT_TRUE(x.to(kCuda0).is_same(x));
}

TEST(DeviceRule, AnExplicitDeviceBeatsTheInputs) {
  FakeMode mode;
  const at::Tensor x = torch::empty({2}, on(kCuda0));
  EXPECT_EQ(at::zeros_like(x, on(kCuda1)).device(), kCuda1);
  EXPECT_EQ(x.new_empty({3}, on(c10::kCPU)).device(), c10::Device(c10::kCPU));
  EXPECT_EQ(x.new_empty({3}).device(), kCuda0);
  EXPECT_EQ(at::zeros_like(x).device(), kCuda0);
}

}  // namespace torchfake::testing
