// Symbolic expressions, environments and nodes.
#include <torchfake/symbolic/errors.h>
#include <torchfake/symbolic/sym_node.h>

#include <gtest/gtest.h>

#include <random>
#include <thread>

namespace torchfake {
namespace {

class SymbolicTest : public ::testing::Test {
 protected:
  std::string text(ExprPtr expr) {
    return env_->text(expr);
  }

  ShapeEnvPtr env_ = std::make_shared<ShapeEnv>();
  ExprPool& pool_ = env_->pool();
  ExprPtr batch_ = env_->create_size(4, "batch", "");
  ExprPtr seq_ = env_->create_size(77, "seq", "");
};

TEST_F(SymbolicTest, EqualExpressionsAreOneObject) {
  const ExprPtr one = pool_.integer(1);
  EXPECT_EQ(pool_.sub(pool_.mul(pool_.add(batch_, one), seq_), seq_), pool_.mul(seq_, batch_));
  EXPECT_EQ(pool_.floordiv(pool_.mul(batch_, seq_), seq_), batch_);
  EXPECT_EQ(pool_.le(pool_.scale(batch_, 2), pool_.integer(7)), pool_.lt(batch_, pool_.integer(4)));
  EXPECT_EQ(pool_.logical_not(pool_.lt(batch_, seq_)), pool_.le(seq_, batch_));
}

TEST_F(SymbolicTest, PrintsReadably) {
  EXPECT_EQ(text(pool_.add_number(pool_.mul(batch_, seq_), 3)), "batch*seq + 3");
  EXPECT_EQ(text(pool_.eq(pool_.mod(batch_, pool_.integer(8)), pool_.integer(0))), "batch % 8 == 0");
  EXPECT_EQ(text(pool_.lt(batch_, seq_)), "batch < seq");
}

TEST_F(SymbolicTest, HintsAreValues) {
  const ExprPtr expr = pool_.floordiv(pool_.mul(batch_, seq_), pool_.integer(3));
  ASSERT_TRUE(expr->has_hint);
  EXPECT_EQ(expr->hint, Value::of(int64_t{4 * 77 / 3}));
}

TEST_F(SymbolicTest, OverflowIsATypedError) {
  EXPECT_THROW(pool_.scale(pool_.scale(batch_, int64_t{1} << 62), 4), DynamicShapesError);
}

TEST_F(SymbolicTest, ADecisionByTheHintIsAGuard) {
  EXPECT_TRUE(env_->decide(pool_.lt(batch_, seq_), Asking::kGuard));
  EXPECT_EQ(env_->guards().size(), 3);  // both are at least 2
  EXPECT_TRUE(env_->guards_hold({{"batch", Value::of(int64_t{8})}, {"seq", Value::of(int64_t{9})}}));
  EXPECT_FALSE(env_->guards_hold({{"batch", Value::of(int64_t{9})}, {"seq", Value::of(int64_t{8})}}));
  EXPECT_THROW(env_->guards_hold({{"batch", Value::of(int64_t{9})}}), c10::ValueError);
}

TEST_F(SymbolicTest, EqualityReplacesASymbol) {
  const ExprPtr other = env_->create_size(77, "other", "");
  EXPECT_TRUE(env_->decide(pool_.eq(seq_, other), Asking::kGuard));
  EXPECT_EQ(env_->simplify(other), seq_);
  EXPECT_EQ(env_->statically_known(pool_.eq(pool_.mul(other, batch_), pool_.mul(seq_, batch_))), true);
}

TEST_F(SymbolicTest, DivisibilityDecidesLaterQuestions) {
  const ExprPtr eight = pool_.integer(8);
  const ExprPtr heads = env_->create_size(64, "width", "");
  EXPECT_TRUE(env_->decide(pool_.eq(pool_.mod(heads, eight), pool_.integer(0)), Asking::kGuard));
  EXPECT_EQ(env_->statically_known(pool_.eq(pool_.mul(pool_.floordiv(heads, eight), eight), heads)), true);
  EXPECT_EQ(
      env_->statically_known(pool_.eq(pool_.mod(pool_.mul(heads, seq_), pool_.integer(4)), pool_.integer(0))), true);
}

TEST_F(SymbolicTest, ASymbolWithoutAHintIsNotGuessed) {
  const ExprPtr count = env_->create_unbacked(ValueType::kInt, /*is_size=*/true, "nonzero");
  const ExprPtr question = pool_.le(count, pool_.integer(5));
  EXPECT_THROW(env_->decide(question, Asking::kGuard), UnbackedSymbolError);
  EXPECT_FALSE(env_->decide(question, Asking::kOrFalse));
  EXPECT_TRUE(env_->decide(question, Asking::kOrTrue));
  EXPECT_FALSE(env_->decide(pool_.eq(count, pool_.integer(0)), Asking::kSizeOblivious));
  EXPECT_TRUE(env_->decide(question, Asking::kExpected));
  EXPECT_TRUE(env_->decide(question, Asking::kGuard));
  EXPECT_EQ(env_->assertions().size(), 1);
}

TEST_F(SymbolicTest, SymIntsComputeWithoutGuards) {
  const c10::SymInt batch = to_sym_int(env_, batch_);
  const c10::SymInt seq = to_sym_int(env_, seq_);
  EXPECT_EQ((batch * seq + 3).toSymNode()->str(), "batch*seq + 3");
  EXPECT_TRUE(statically_equal(batch * seq / seq, batch));
  EXPECT_EQ((batch - batch).maybe_as_int(), 0);
  EXPECT_EQ(env_->guards().size(), 2);
  EXPECT_EQ(batch.guard_int(__FILE__, __LINE__), 4);
  EXPECT_EQ(batch.maybe_as_int(), 4);
}

TEST_F(SymbolicTest, SymbolsOfTwoEnvironmentsDoNotMix) {
  const auto other = std::make_shared<ShapeEnv>();
  const c10::SymInt foreign = to_sym_int(other, other->create_size(5, "foreign", ""));
  EXPECT_THROW(to_sym_int(env_, batch_) + foreign, DynamicShapesError);
}

// A random expression and its value at given sizes, computed independently.
struct Sample {
  ExprPtr expr;
  std::optional<int64_t> value;
};

Sample random_expression(
    std::mt19937& random,
    ExprPool& pool,
    c10::ArrayRef<std::pair<ExprPtr, int64_t>> symbols,
    int depth) {
  const auto draw = [&](int below) { return static_cast<int>(random() % below); };
  if (depth == 0 || draw(5) == 0) {
    if (draw(3) == 0) {
      const int64_t number = draw(12) - 4;
      return {pool.integer(number), number};
    }
    const auto& [symbol, value] = symbols[draw(static_cast<int>(symbols.size()))];
    return {symbol, value};
  }
  const Sample a = random_expression(random, pool, symbols, depth - 1);
  const Sample b = random_expression(random, pool, symbols, depth - 1);
  const auto both = [&](auto compute) -> std::optional<int64_t> {
    return a.value && b.value ? std::optional<int64_t>(compute(*a.value, *b.value)) : std::nullopt;
  };
  const auto floor = [](int64_t x, int64_t y) { return x / y - (x % y != 0 && (x < 0) != (y < 0) ? 1 : 0); };
  switch (draw(7)) {
    case 0:
      return {pool.add(a.expr, b.expr), both([](int64_t x, int64_t y) { return x + y; })};
    case 1:
      return {pool.sub(a.expr, b.expr), both([](int64_t x, int64_t y) { return x - y; })};
    case 2:
      return {pool.mul(a.expr, b.expr), both([](int64_t x, int64_t y) { return x * y; })};
    case 3:
      return {pool.min(a.expr, b.expr), both([](int64_t x, int64_t y) { return std::min(x, y); })};
    case 4:
      return {pool.max(a.expr, b.expr), both([](int64_t x, int64_t y) { return std::max(x, y); })};
    case 5:
      if (b.expr->is_int(0)) {
        return a;
      }
      return {pool.floordiv(a.expr, b.expr), b.value == 0 ? std::nullopt : both(floor)};
    default:
      if (b.expr->is_int(0)) {
        return a;
      }
      return {pool.mod(a.expr, b.expr), b.value == 0 ? std::nullopt : both([&](int64_t x, int64_t y) {
                return x - floor(x, y) * y;
              })};
  }
}

TEST(SymbolicAlgebra, KeepsValuesAndRanges) {
  std::mt19937 random(20261116);
  for (int round = 0; round < 300; ++round) {
    ShapeEnv env;
    c10::SmallVector<std::pair<ExprPtr, int64_t>, 3> symbols;
    for (const char* name : {"a", "b", "c"}) {
      const int64_t value = 2 + static_cast<int64_t>(random() % 30);
      symbols.emplace_back(env.create_size(value, name, ""), value);
    }
    for (int i = 0; i < 100; ++i) {
      const Sample sample = random_expression(random, env.pool(), symbols, 4);
      if (!sample.value) {
        continue;
      }
      // A part that divides by zero may have been cancelled, but an existing value must be correct.
      ASSERT_TRUE(sample.expr->has_hint) << env.text(sample.expr);
      ASSERT_EQ(sample.expr->hint.integer, *sample.value) << env.text(sample.expr);
      const Range range = env.range(sample.expr);
      ASSERT_LE(range.low, *sample.value) << env.text(sample.expr);
      ASSERT_GE(range.high, *sample.value) << env.text(sample.expr);
      const ExprPtr question = env.pool().le(sample.expr, env.pool().integer(7));
      if (const std::optional<bool> known = env.statically_known(question)) {
        ASSERT_EQ(*known, *sample.value <= 7) << env.text(question);
      }
    }
  }
}

TEST(SymbolicAlgebra, ThreadsShareAnEnvironment) {
  ShapeEnv env;
  const ExprPtr a = env.create_size(6, "a", "");
  const ExprPtr b = env.create_size(9, "b", "");
  std::vector<ExprPtr> results(4);
  std::vector<std::thread> threads;
  for (ExprPtr& result : results) {
    threads.emplace_back([&] {
      ExprPtr sum = env.pool().integer(0);
      for (int64_t i = 0; i < 200; ++i) {
        sum = env.pool().add(sum, env.pool().mul(env.pool().add_number(a, i), b));
        env.decide(env.pool().lt(env.pool().add_number(a, i % 7), b), Asking::kGuard);
      }
      result = sum;
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const ExprPtr result : results) {
    EXPECT_EQ(result, results[0]);
  }
}

}  // namespace
}  // namespace torchfake
