// Fakes with symbolic sizes in the C++ API.
#include <ATen/ATen.h>

#include <gtest/gtest.h>
#include <torchfake/symbolic/errors.h>
#include <torchfake/torchfake.h>

namespace torchfake {
namespace {

std::string text(const c10::SymInt& size) {
  return c10::str(size);
}

TEST(SymbolicShapesTest, OperatorsReturnExpressions) {
  const at::Tensor real = at::ones({4, 6, 3});
  const at::Tensor weight = at::ones({3, 5});
  const FakeMode mode;
  const SymbolicShapes shapes(mode);
  const at::Tensor x = to_fake(real, {{0, "batch"}, {1, "seq"}});
  const at::Tensor y = x.matmul(to_fake(weight)).relu();
  EXPECT_EQ(text(y.sym_size(0)), "batch");
  EXPECT_EQ(text(y.sym_stride(0)), "5*seq");
  EXPECT_EQ(text(x.view({-1}).sym_size(0)), "3*batch*seq");
  EXPECT_EQ(shapes.evaluate(y.sym_numel(), {{"batch", 7}, {"seq", 2}}), 70);
  EXPECT_EQ(shapes.guards(), (std::vector<std::string>{"batch >= 2", "seq >= 2"}));
  EXPECT_TRUE(shapes.guards_hold({{"batch", 7}, {"seq", 2}}));
  EXPECT_FALSE(shapes.guards_hold({{"batch", 1}, {"seq", 2}}));
  EXPECT_THROW(shapes.guards_hold({{"batch", 7}}), c10::ValueError);
}

TEST(SymbolicShapesTest, WhatOnlyDataTellsIsASymbol) {
  const at::Tensor real = at::ones({4, 3});
  const FakeMode mode({.known_values = 0});
  const SymbolicShapes shapes(mode);
  const at::Tensor x = to_fake(real, {{0, "rows"}});
  const at::Tensor found = x.nonzero();
  EXPECT_EQ(text(found.sym_size(0)), "u0");
  EXPECT_EQ(text(x.nonzero().sym_size(0)), "u0");
  EXPECT_TRUE(to_fake(at::scalar_tensor(3, at::kLong)).item().isSymbolic());
}

TEST(SymbolicShapesTest, BadInputIsRefused) {
  const at::Tensor real = at::ones({4, 6});
  EXPECT_THROW(to_fake(real, {{0, "batch"}}), c10::ValueError);
  const FakeMode mode;
  EXPECT_THROW(to_fake(real, {{0, "batch"}}), c10::ValueError);
  const SymbolicShapes shapes(mode);
  EXPECT_THROW(SymbolicShapes{mode}, c10::ValueError);
  EXPECT_THROW(to_fake(real, {{2, "batch"}}), c10::IndexError);
  EXPECT_THROW(to_fake(real, {{0, "n"}, {1, "n"}}), c10::ValueError);
  EXPECT_THROW(to_fake(to_fake(real), {{0, "batch"}}), c10::ValueError);
  const at::Tensor x = to_fake(real, {{0, "batch"}});
  const FakeMode other;
  const SymbolicShapes others(other);
  EXPECT_THROW(others.evaluate(x.sym_size(0), {}), DynamicShapesError);
}

}  // namespace
}  // namespace torchfake
