// Errors that the cache keeps, and those that it must not.
#include "testing.h"

#include <torchfake/dispatch/shape_cache.h>

namespace torchfake::testing {

namespace {

template <typename Error>
CacheEntryPtr entry_of(const std::string& message) {
  CacheKey key;
  return error_outcome(key, Error(message, /*backtrace=*/nullptr));
}

}  // namespace

TEST(ErrorOutcome, HasTheTypeOfTheError) {
  using Type = ErrorOutcome::Type;
  EXPECT_EQ(entry_of<c10::Error>("no")->error->type, Type::kPlain);
  EXPECT_EQ(entry_of<c10::IndexError>("no")->error->type, Type::kIndex);
  EXPECT_EQ(entry_of<c10::ValueError>("no")->error->type, Type::kValue);
  EXPECT_EQ(entry_of<c10::TypeError>("no")->error->type, Type::kType);
  EXPECT_EQ(entry_of<c10::NotImplementedError>("no")->error->type, Type::kNotImplemented);
  EXPECT_EQ(entry_of<c10::LinAlgError>("no")->error->type, Type::kLinAlg);
  CacheKey key;
  const CacheEntryPtr typed = error_outcome(key, MixedModesError("aten::add", "two modes"));
  EXPECT_EQ(typed->error->type, Type::kTyped);
  EXPECT_EQ(typed->error->kind, ErrorKind::kMixedModes);
  EXPECT_EQ(typed->error->op, "aten::add");
}

TEST(ErrorOutcome, IsNoneOfAnErrorThatMayNotComeAgain) {
  EXPECT_FALSE(entry_of<c10::OutOfMemoryError>("no room"));
  EXPECT_FALSE(entry_of<c10::Error>("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."));
}

TEST(ErrorOutcome, IsNoneOfAnErrorOfAnotherType) {
  EXPECT_FALSE(entry_of<c10::DistError>("rank 3 left"));
  EXPECT_FALSE(entry_of<c10::SyntaxError>("no"));
}

}  // namespace torchfake::testing
