// Cached outcomes of calls: errors, and temporary memory of kernels.
#include "testing.h"

#include <torchfake/cache/shape_cache.h>

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

namespace {

class Total final : public StorageObserver {
 public:
  void on_alloc(const Allocation& allocation) override {
    allocated += allocation.nbytes;
  }
  void on_resize(const Allocation& /*allocation*/, size_t /*old_nbytes*/) override {}
  void on_free(const void* /*id*/, c10::Device /*device*/, size_t nbytes) noexcept override {
    freed += nbytes;
  }
  size_t allocated = 0;
  size_t freed = 0;
};

}  // namespace

TEST(Outcome, IsAppliedWithWhatItsKernelTakesOnTheSide) {
  const auto total = std::make_shared<Total>();
  const FakeMode mode(FakeModeOptions{.storage_observer = total});
  Outcome outcome;
  EXPECT_FALSE(has_effects(outcome));
  outcome.allocations = {{kCuda0, 512}, {kCuda0, 1024}};
  EXPECT_TRUE(has_effects(outcome));
  announce_and_apply(outcome, {}, mode.state());
  EXPECT_EQ(total->allocated, 1536);
  EXPECT_EQ(total->freed, 1536);
}

}  // namespace torchfake::testing
