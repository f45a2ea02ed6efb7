// The table of operators: how its rows name operators, and the facts in them.
#include <torchfake/core/op_traits.h>
#include <torchfake/rules/operator_table.h>

#include "testing.h"

namespace torchfake::testing {

TEST(OperatorTable, NamesOperatorsOfAtenAndPrimsByTheirBaseName) {
  EXPECT_TRUE(names_operator("add mul", "aten", "mul", "Tensor"));
  EXPECT_TRUE(names_operator("copy_to", "prims", "copy_to", ""));
  EXPECT_FALSE(names_operator("add mul", "mine", "mul", ""));
  EXPECT_FALSE(names_operator("add", "aten", "add_", "Tensor"));
  EXPECT_TRUE(names_operator("c10d::broadcast_", "c10d", "broadcast_", ""));
  EXPECT_FALSE(names_operator("c10d::broadcast_", "aten", "broadcast_", ""));
}

TEST(OperatorTable, NamesFamiliesByAStarAndOverloadsByAPoint) {
  EXPECT_TRUE(names_operator("*_like", "aten", "zeros_like", ""));
  EXPECT_TRUE(names_operator("empty*", "aten", "empty_strided", ""));
  EXPECT_FALSE(names_operator("empty*", "aten", "new_empty", ""));
  EXPECT_TRUE(names_operator("equal.", "aten", "equal", ""));
  EXPECT_FALSE(names_operator("equal.", "aten", "equal", "out"));
  EXPECT_TRUE(names_operator("index.Tensor", "aten", "index", "Tensor"));
}

TEST(OperatorTable, FillsTheFactsOfAnOperator) {
  const auto facts = [](const char* name, const char* overload) -> const OpTraits& {
    return OpTraits::of(c10::Dispatcher::singleton().findSchemaOrThrow(name, overload));
  };
  EXPECT_EQ(facts("aten::copy_", "").devices, DevicePolicy::kFirst);
  EXPECT_EQ(facts("aten::copy_", "").values, ValueSource::kOverwrite);
  EXPECT_EQ(facts("aten::zeros_like", "").values, ValueSource::kConstant);
  EXPECT_EQ(facts("aten::rand_like", "").values, ValueSource::kDrawn);
  EXPECT_NE(facts("aten::index", "Tensor").rule, nullptr);
  EXPECT_EQ(facts("aten::add", "Tensor").rule, nullptr);
  EXPECT_NE(facts("aten::mm", "").kernel, nullptr);
}

}  // namespace torchfake::testing
