// Operator traits: always those of the current definition, for any number of operators.
#include <torch/library.h>
#include <torchfake/core/op_traits.h>

#include "testing.h"

namespace torchfake::testing {

namespace {

const OpTraits& traits_of(const std::string& name) {
  return OpTraits::of(c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), ""));
}

}  // namespace

TEST(OpTraits, AreThoseOfTheDefinitionThatHoldsNow) {
  const OpTraits* first = nullptr;
  {
    torch::Library library(torch::Library::FRAGMENT, "torchfake_traits", std::nullopt, __FILE__, __LINE__);
    library.def("again(Tensor x, int n) -> Tensor");
    first = &traits_of("torchfake_traits::again");
    EXPECT_EQ(first->args.size(), 2);
    EXPECT_EQ(&traits_of("torchfake_traits::again"), first);
  }
  torch::Library library(torch::Library::FRAGMENT, "torchfake_traits", std::nullopt, __FILE__, __LINE__);
  library.def("again(Tensor(a!) x) -> ()");
  const OpTraits& second = traits_of("torchfake_traits::again");
  EXPECT_NE(&second, first);
  EXPECT_EQ(second.args.size(), 1);
  EXPECT_TRUE(second.mutates);
  EXPECT_EQ(first->args.size(), 2) << "a call that still runs may read them";
}

TEST(OpTraits, OfMoreOperatorsThanTheTableHasSlots) {
  constexpr int kOperators = (1 << 14) + 500;
  for (int round = 0; round < 2; ++round) {  // the second time in the slots of removed operators
    torch::Library library(torch::Library::FRAGMENT, "torchfake_many", std::nullopt, __FILE__, __LINE__);
    for (int i = 0; i < kOperators; ++i) {
      const std::string args = i % 2 == 0 ? "Tensor x" : "Tensor x, Tensor y";
      library.def(("op" + std::to_string(i) + "(" + args + ") -> Tensor").c_str());
    }
    for (int pass = 0; pass < 2; ++pass) {
      for (int i = 0; i < kOperators; ++i) {
        const std::string name = "torchfake_many::op" + std::to_string(i);
        const OpTraits& traits = traits_of(name);
        ASSERT_EQ(traits.name, name);
        ASSERT_EQ(traits.args.size(), i % 2 == 0 ? 1 : 2);
      }
    }
  }
  EXPECT_EQ(traits_of("aten::relu").name, "aten::relu");
}

}  // namespace torchfake::testing
