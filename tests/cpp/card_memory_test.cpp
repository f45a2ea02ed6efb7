// Counting live storages on claimed cards: see Note [Counting storages].
#include <torchfake/devices/card_memory.h>

#include <thread>
#include <vector>

#include "testing.h"

namespace torchfake::testing {

namespace {

std::shared_ptr<CardMemory> counter() {
  return std::make_shared<CardMemory>(c10::kCUDA);
}

}  // namespace

TEST(CardMemory, CountsStoragesByCardUntilTheyDie) {
  const auto memory = counter();
  FakeMode mode(FakeModeOptions{.storage_observer = memory});
  const at::Tensor host = torch::empty({1000});
  at::Tensor x = torch::empty({1000}, on(kCuda1));
  EXPECT_EQ(memory->card(1).bytes(), 4096);
  at::Tensor y = x + x;
  y = y.view({10, 100});
  EXPECT_EQ(memory->card(1).bytes(), 8192);
  EXPECT_EQ(memory->card(1).live(), 2);
  EXPECT_EQ(memory->card(0).bytes(), 0);
  x.reset();
  y.reset();
  EXPECT_EQ(memory->card(1).bytes(), 0);
  EXPECT_EQ(memory->card(1).live(), 0);
  EXPECT_EQ(memory->card(1).allocations(), 2);
  EXPECT_EQ(memory->card(1).peak(), 8192);
  memory->card(1).reset_peak();
  EXPECT_EQ(memory->card(1).peak(), 0);
}

TEST(CardMemory, CountsStoragesThatAreResized) {
  const auto memory = counter();
  FakeMode mode(FakeModeOptions{.storage_observer = memory});
  at::Tensor x = torch::empty({1000}, on(kCuda0));
  for (int round = 0; round < 2; ++round) {  // the second comes from the cache
    x.resize_({4000});
    EXPECT_EQ(memory->card(0).bytes(), 16384);
    resize_storage(storage_of(x), 0);
    EXPECT_EQ(memory->card(0).bytes(), 0);
    EXPECT_EQ(memory->card(0).live(), 0);
    resize_storage(storage_of(x), 4000);
    x.resize_({1000});
    EXPECT_EQ(memory->card(0).bytes(), 4096);
    EXPECT_EQ(memory->card(0).live(), 1);
  }
  x.reset();
  EXPECT_EQ(memory->card(0).bytes(), 0);
}

TEST(CardMemory, CountsNoStorageThatOnlyAWeakReferenceHolds) {
  const auto memory = counter();
  FakeMode mode(FakeModeOptions{.storage_observer = memory});
  at::Tensor x = torch::empty({1000}, on(kCuda0));
  const c10::weak_intrusive_ptr<c10::StorageImpl> weak(
      c10::intrusive_ptr<c10::StorageImpl>::unsafe_reclaim_from_nonowning(storage_of(x)));
  x.reset();
  EXPECT_TRUE(weak.expired());
  EXPECT_EQ(memory->card(0).bytes(), 0);
}

TEST(CardMemory, CountsOfSeveralThreadsAddUp) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 2000;
  const auto memory = counter();
  FakeMode mode(FakeModeOptions{.storage_observer = memory});
  const at::Tensor x = torch::empty({128}, on(kCuda0));
  std::vector<at::Tensor> kept(kThreads);
  std::vector<std::thread> threads;
  for (at::Tensor& mine : kept) {
    threads.emplace_back([&mine, &x] {
      for (int round = 0; round < kRounds; ++round) {
        mine = x + x;
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(memory->card(0).bytes(), (1 + kThreads) * 512);
  EXPECT_EQ(memory->card(0).live(), 1 + kThreads);
  EXPECT_EQ(memory->card(0).allocations(), 1 + kThreads * kRounds);
  kept.clear();  // on another thread than the one that created them
  EXPECT_EQ(memory->card(0).bytes(), 512);
  EXPECT_GE(memory->card(0).peak(), (1 + kThreads) * 512);
}

TEST(CardMemory, AStorageThatOutlivesItsModeDisturbsNoLaterOne) {
  c10::Storage storage;
  {
    FakeMode mode(FakeModeOptions{.storage_observer = counter()});
    storage = torch::empty({1000}, on(kCuda0)).storage();
  }
  const auto memory = counter();
  FakeMode mode(FakeModeOptions{.storage_observer = memory});
  const at::Tensor x = torch::empty({1000}, on(kCuda0));
  EXPECT_EQ(memory->card(0).bytes(), 4096);
  storage = c10::Storage();
  EXPECT_EQ(memory->card(0).bytes(), 4096);
  EXPECT_EQ(memory->card(0).live(), 1);
}

TEST(CardMemory, CountsAnewForALaterMode) {
  for (int round = 0; round < 3; ++round) {
    const auto memory = counter();
    FakeMode mode(FakeModeOptions{.storage_observer = memory});
    EXPECT_EQ(memory->card(0).peak(), 0);
    EXPECT_EQ(memory->card(0).allocations(), 0);
    const at::Tensor x = torch::empty({1000}, on(kCuda0));
    EXPECT_EQ(memory->card(0).peak(), 4096);
  }
}

TEST(CardMemory, CountsMemoryOfAKernelWhileItRuns) {
  const auto memory = counter();
  memory->on_alloc({.device = kCuda0, .nbytes = 1000});
  memory->on_alloc({.device = kCuda0, .nbytes = 512});
  memory->on_free(nullptr, kCuda0, 1000);
  memory->on_free(nullptr, kCuda0, 512);
  EXPECT_EQ(memory->card(0).bytes(), 0);
  EXPECT_EQ(memory->card(0).peak(), 1536);
  EXPECT_EQ(memory->card(0).live(), 0);
}

}  // namespace torchfake::testing
