// The allocator model, the memory of a mode, and the ledger of owners.
#include <torchfake/devices/card_memory.h>
#include <torchfake/memory/memory_model.h>
#include <torchfake/memory/observer_pair.h>

#include <numeric>

#include "testing.h"

namespace torchfake::testing {

namespace {

using memory::AllocatorConfig;
using memory::Block;
using memory::CachingAllocator;
using memory::CardMemory;
using memory::kMiB;
using memory::Ledger;
using memory::MemoryModel;
using memory::Owner;
using memory::StatArray;

int64_t reserved(const CachingAllocator& allocator) {
  return allocator.stats().reserved_bytes.parts[StatArray::kAll].current;
}

}  // namespace

TEST(CachingAllocator, RoundsSizesAndTakesSegmentsByPool) {
  CardMemory card(size_t{1} << 34);
  CachingAllocator allocator({}, card);
  const Block* small = allocator.allocate(1, 0);
  EXPECT_EQ(CachingAllocator::block_size(small), 512);
  EXPECT_EQ(reserved(allocator), 2 * kMiB);
  allocator.allocate(kMiB + 1, 0);
  EXPECT_EQ(reserved(allocator), 22 * kMiB);
  allocator.allocate(29 * kMiB, 0);
  EXPECT_EQ(reserved(allocator), 52 * kMiB);
}

TEST(CachingAllocator, DoesNotSplitALargeBlockForARestOfAMebibyte) {
  CardMemory card(size_t{1} << 34);
  CachingAllocator allocator({}, card);
  Block* first = allocator.allocate(20 * kMiB, 0);
  allocator.free(first);
  const Block* second = allocator.allocate(19 * kMiB, 0);
  EXPECT_EQ(CachingAllocator::block_size(second), 20 * kMiB);
}

TEST(CachingAllocator, MergesFreeNeighboursAndReusesThem) {
  CardMemory card(size_t{1} << 34);
  CachingAllocator allocator({}, card);
  std::vector<Block*> blocks;
  for (int i = 0; i < 4; ++i) {
    blocks.push_back(allocator.allocate(256 * 1024, 0));
  }
  const uint64_t address = CachingAllocator::block_address(blocks[0]);
  for (Block* block : blocks) {
    allocator.free(block);
  }
  const Block* whole = allocator.allocate(kMiB, 0);
  EXPECT_EQ(CachingAllocator::block_address(whole), address);
  EXPECT_EQ(reserved(allocator), 2 * kMiB);
}

TEST(CachingAllocator, KeepsTheBlocksOfStreamsApart) {
  CardMemory card(size_t{1} << 34);
  CachingAllocator allocator({}, card);
  allocator.free(allocator.allocate(512, 0));
  allocator.allocate(512, 1);
  EXPECT_EQ(reserved(allocator), 4 * kMiB);
}

TEST(CachingAllocator, ABlockThatAnotherStreamUsesComesBackWithTheNextAllocation) {
  CardMemory card(size_t{1} << 34);
  CachingAllocator allocator({}, card);
  Block* block = allocator.allocate(512, 0);
  allocator.record_stream(block, 1);
  allocator.free(block);
  EXPECT_EQ(allocator.stats().active.parts[StatArray::kAll].current, 1);
  allocator.allocate(512, 0);
  EXPECT_EQ(allocator.stats().active.parts[StatArray::kAll].current, 1);
}

TEST(CachingAllocator, EmptyingTheCacheGivesWholeSegmentsBack) {
  CardMemory card(size_t{1} << 34);
  CachingAllocator allocator({}, card);
  Block* kept = allocator.allocate(512, 0);
  allocator.free(allocator.allocate(30 * kMiB, 0));
  allocator.empty_cache();
  EXPECT_EQ(reserved(allocator), 2 * kMiB);
  allocator.free(kept);
  allocator.empty_cache();
  EXPECT_EQ(reserved(allocator), 0);
  EXPECT_EQ(card.free_bytes(), card.total_bytes());
}

TEST(CachingAllocator, ACardThatIsFullIsRefusedAndNothingIsLost) {
  CardMemory card(100 * kMiB);
  CachingAllocator allocator({}, card);
  Block* block = allocator.allocate(60 * kMiB, 0);
  EXPECT_THROW(allocator.allocate(60 * kMiB, 0), c10::OutOfMemoryError);
  EXPECT_EQ(allocator.allocated_bytes(), 60 * kMiB);
  allocator.free(block);
  allocator.allocate(70 * kMiB, 0);
}

TEST(CachingAllocator, AFractionLimitsWhatIsReserved) {
  CardMemory card(1000 * kMiB);
  CachingAllocator allocator({}, card);
  allocator.set_memory_fraction(0.5);
  allocator.allocate(400 * kMiB, 0);
  EXPECT_THROW(allocator.allocate(200 * kMiB, 0), c10::OutOfMemoryError);
  EXPECT_THROW(allocator.set_memory_fraction(1.5), c10::Error);
}

TEST(CachingAllocator, AnExpandableSegmentGrowsAndIsUnmapped) {
  CardMemory card(size_t{1} << 34);
  CachingAllocator allocator(memory::parse_allocator_config("expandable_segments:True"), card);
  Block* first = allocator.allocate(30 * kMiB, 0);
  EXPECT_EQ(reserved(allocator), 40 * kMiB);
  Block* second = allocator.allocate(30 * kMiB, 0);
  EXPECT_EQ(reserved(allocator), 60 * kMiB);
  EXPECT_EQ(allocator.snapshot().size(), 1);
  allocator.free(second);
  allocator.empty_cache();
  EXPECT_EQ(reserved(allocator), 40 * kMiB);
  allocator.free(first);
  allocator.empty_cache();
  EXPECT_EQ(card.free_bytes(), card.total_bytes());
}

TEST(MemoryModel, CountsTheStoragesOfAModeByDevice) {
  const auto model = std::make_shared<MemoryModel>(memory::Card{});
  FakeMode mode(FakeModeOptions{.storage_observer = model});
  at::Tensor x = torch::empty({1 << 20}, on(kCuda1));
  EXPECT_EQ(model->allocator(kCuda1).allocated_bytes(), 4 * kMiB);
  x = at::Tensor();
  EXPECT_EQ(model->allocator(kCuda1).allocated_bytes(), 0);
  EXPECT_EQ(model->allocator(kCuda1).reserved_bytes(), 20 * kMiB);
}

TEST(MemoryModel, LivesAsLongAsTheStoragesThatItCounts) {
  std::weak_ptr<MemoryModel> model;
  c10::Storage of_a_miss;
  c10::Storage of_a_hit;
  {
    const auto made = std::make_shared<MemoryModel>(memory::Card{});
    model = made;
    FakeMode mode(FakeModeOptions{.storage_observer = made});
    of_a_miss = torch::empty({1 << 20}, on(kCuda1)).storage();
    of_a_hit = torch::empty({1 << 20}, on(kCuda1)).storage();
  }
  ASSERT_FALSE(model.expired());
  EXPECT_EQ(model.lock()->allocator(kCuda1).allocated_bytes(), 8 * kMiB);
  of_a_miss = c10::Storage();
  EXPECT_EQ(model.lock()->allocator(kCuda1).allocated_bytes(), 4 * kMiB);
  of_a_hit = c10::Storage();
  EXPECT_TRUE(model.expired());
}

TEST(MemoryModel, FollowsAResizeAndRefusesOneBeforeAnythingChanges) {
  memory::Card card;
  card.total_bytes = 900 * kMiB;
  card.context_bytes = 0;
  const auto model = std::make_shared<MemoryModel>(card);
  FakeMode mode(FakeModeOptions{.storage_observer = model});
  for (int i = 0; i < 2; ++i) {  // a miss and a hit
    at::Tensor x = torch::empty({1 << 20}, on(kCuda1));
    x.resize_({1 << 24});
    EXPECT_EQ(model->allocator(kCuda1).allocated_bytes(), 64 * kMiB);
    EXPECT_THROW(x.resize_({1 << 28}), c10::OutOfMemoryError);
    EXPECT_EQ(x.numel(), 1 << 24);
    EXPECT_EQ(x.storage().nbytes(), 64 * kMiB);
    EXPECT_EQ(model->allocator(kCuda1).allocated_bytes(), 64 * kMiB);
  }
}

TEST(MemoryModel, CountsAlongWithACountingObserver) {
  const auto cards = std::make_shared<torchfake::CardMemory>(c10::kCUDA);
  const auto model = std::make_shared<MemoryModel>(memory::Card{});
  FakeMode mode(FakeModeOptions{.storage_observer = std::make_shared<memory::ObserverPair>(model, cards)});
  for (int i = 0; i < 2; ++i) {  // a miss and a hit
    at::Tensor x = torch::empty({1 << 20}, on(kCuda1));
    EXPECT_EQ(cards->card(1).bytes(), 4 * kMiB);
    x.resize_({1 << 21});
    EXPECT_EQ(cards->card(1).bytes(), 8 * kMiB);
    EXPECT_EQ(model->allocator(kCuda1).allocated_bytes(), 8 * kMiB);
  }
  EXPECT_EQ(cards->card(1).bytes(), 0);
  EXPECT_EQ(model->allocator(kCuda1).allocated_bytes(), 0);
}

TEST(MemoryModel, TakesTheWorkspaceOfALibraryOnce) {
  const auto model = std::make_shared<MemoryModel>(memory::Card{});
  FakeMode mode(FakeModeOptions{.storage_observer = model});
  const at::Tensor x = torch::empty({16, 16}, on(kCuda1));
  const at::Tensor y = x.mm(x);
  EXPECT_EQ(model->allocator(kCuda1).allocated_bytes(), 32 * kMiB + 2 * 1024);
  const at::Tensor z = x.mm(y);
  EXPECT_EQ(model->allocator(kCuda1).allocated_bytes(), 32 * kMiB + 3 * 1024);
  model->clear_workspaces();
  EXPECT_EQ(model->allocator(kCuda1).allocated_bytes(), 3 * 1024);
}

TEST(MemoryModel, ATemporaryOfAKernelCountsInThePeakAloneOnMissAndHit) {
  const auto model = std::make_shared<MemoryModel>(memory::Card{});
  FakeMode mode(FakeModeOptions{.storage_observer = model});
  const at::Tensor x = torch::empty({4096, 512}, on(kCuda1));
  for (int i = 0; i < 2; ++i) {
    CachingAllocator& allocator = model->allocator(kCuda1);
    allocator.reset_peak_stats();
    const at::Tensor sum = x.sum(0);
    // 8 MiB of input, 16 MiB for the kernel's partial results, their counters, and the sum.
    EXPECT_EQ(allocator.stats().allocated_bytes.parts[StatArray::kAll].peak, 24 * kMiB + 2048 + 512);
    EXPECT_EQ(allocator.allocated_bytes(), 8 * kMiB + 2048);
  }
}

TEST(MemoryModel, ACardThatIsFullEndsTheCallAndTheModeGoesOn) {
  memory::Card card;
  card.total_bytes = 900 * kMiB;
  card.context_bytes = 0;
  const auto model = std::make_shared<MemoryModel>(card);
  FakeMode mode(FakeModeOptions{.storage_observer = model});
  const at::Tensor x = torch::empty({1 << 27}, on(kCuda1));
  EXPECT_THROW(x + 1, c10::OutOfMemoryError);
  EXPECT_THROW(x + 1, c10::OutOfMemoryError);
  EXPECT_EQ(x.slice(0, 0, 1024).add(1).numel(), 1024);
}

TEST(Ledger, OwnersAddUpToWhatIsAllocatedAtEveryEvent) {
  const auto model = std::make_shared<MemoryModel>(memory::Card{});
  const auto ledger = std::make_shared<Ledger>();
  model->set_ledger(ledger);
  int64_t allocated = 0;
  {
    FakeMode mode(FakeModeOptions{.storage_observer = model});
    const at::Tensor w = torch::empty({512, 512}, on(kCuda1)).requires_grad_();
    w.mm(w).relu().sum().backward();
    allocated = model->allocator(kCuda1).allocated_bytes();
  }
  const auto timeline = ledger->timeline(kCuda1, 0);
  ASSERT_FALSE(timeline.empty());
  EXPECT_GE(ledger->peak(kCuda1).second, allocated);
  int64_t most = 0;
  for (const memory::TimelinePoint& point : timeline) {
    most = std::max(most, point.total());
    for (const int64_t bytes : point.bytes) {
      EXPECT_GE(bytes, 0);
    }
  }
  EXPECT_EQ(most, ledger->peak(kCuda1).second);
}

TEST(Ledger, AClaimGivesABlockItsOwner) {
  Ledger ledger;
  const int storage = 0;
  memory::LedgerRecord record;
  record.storage = &storage;
  record.nbytes = 1024;
  record.device = kCuda1;
  const uint32_t number = ledger.birth(record);
  ledger.claim(&storage, Owner::kParameters);
  ledger.death(number);
  const auto records = ledger.records();
  EXPECT_EQ(records[0].owner, Owner::kParameters);
  EXPECT_EQ(records[0].died, 1);
}

}  // namespace torchfake::testing
