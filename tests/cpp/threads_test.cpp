// Many threads at once. Also run under the thread sanitizer: bash run test-tsan.
#include <torchfake/cache/shape_cache.h>
#include <torchfake/convert/converter.h>
#include <torchfake/values/known_values.h>

#include <atomic>
#include <barrier>
#include <thread>

#include "testing.h"

namespace torchfake::testing {

namespace {

constexpr int kThreads = 4;

// Runs `work(index)` on threads that start together.
template <typename Work>
void at_once(const Work& work) {
  std::barrier start(kThreads);
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      start.arrive_and_wait();
      work(i);
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

class Counter final : public OpRecorder {
 public:
  void on_op(const c10::OperatorHandle& /*op*/, c10::ArrayRef<c10::IValue> /*arguments*/, c10::ArrayRef<c10::IValue>)
      override {
    ++calls;
  }
  std::atomic<int> calls{0};
};

}  // namespace

TEST(Threads, DispatchInModesOfTheirOwn) {
  std::atomic<int> right{0};
  at_once([&](int index) {
    for (int round = 0; round < 50; ++round) {
      FakeMode mode(FakeModeOptions{.known_values = index});
      const at::Tensor x = torch::empty({index + 1, 4}, on(round % 2 == 0 ? kCuda0 : c10::Device(c10::kCPU)));
      right += x.mm(x.t()).add(1).relu_().sizes() == c10::IntArrayRef({index + 1, index + 1}) ? 1 : 0;
    }
  });
  EXPECT_EQ(right, 50 * kThreads);
}

TEST(Threads, DispatchInOneModeOnOneTensor) {
  const auto state = c10::make_intrusive<ModeState>(FakeModeOptions{});
  at::Tensor shared;
  {
    FakeMode mode(state);
    shared = torch::empty({4, 4}, on(kCuda0));
  }
  std::atomic<int> right{0};
  at_once([&](int index) {
    FakeMode mode(state);
    for (int round = 0; round < 50; ++round) {
      right += shared.mm(shared).narrow(0, 0, index + 1).size(0) == index + 1 ? 1 : 0;
    }
  });
  EXPECT_EQ(right, 50 * kThreads);
}

TEST(Threads, ChangeOptionsWhileOthersDispatch) {
  const auto state = c10::make_intrusive<ModeState>(FakeModeOptions{});
  at_once([&](int index) {
    for (int round = 0; round < 100; ++round) {
      if (index == 0) {
        state->options.known_values = round;
        state->options.prefer_device_type = round % 2 == 0 ? std::optional(c10::kCUDA) : std::nullopt;
        state->cache.turn(round % 3 != 0);
        state->epoch = round;
      } else {
        FakeMode mode(state);
        EXPECT_EQ(torch::ones({3}).add(1).numel(), 3);
      }
    }
  });
}

TEST(Threads, FillEvictAndClearTheCache) {
  const CacheInfo before = shape_cache::info();
  shape_cache::set_limits(64, before.max_bytes);
  std::atomic<int> right{0};
  at_once([&](int index) {
    FakeMode mode;
    for (int round = 0; round < 200; ++round) {
      const at::Tensor x = torch::empty({round % 40, 3});
      right += x.t().contiguous().size(1) == round % 40 ? 1 : 0;
      if (index == 0 && round % 50 == 0) {
        shape_cache::clear();
      }
    }
  });
  EXPECT_EQ(right, 200 * kThreads);
  shape_cache::set_limits(before.max_size, before.max_bytes);
}

TEST(Threads, OverlapScopesOfTheCache) {
  const auto state = c10::make_intrusive<ModeState>(FakeModeOptions{});
  at_once([&](int index) {
    for (int round = 0; round < 200; ++round) {
      const shape_cache::NoCache no_cache(index % 2 == 0 ? state : ModePtr());
      const shape_cache::CrossCheck cross_check;
      EXPECT_FALSE(shape_cache::hits_complete_calls());
    }
  });
  EXPECT_TRUE(shape_cache::hits_complete_calls());
  EXPECT_TRUE(state->cache.is_on());
}

TEST(Threads, HaveRecordersOfTheirScopes) {
  const auto state = c10::make_intrusive<ModeState>(FakeModeOptions{});
  std::vector<std::shared_ptr<Counter>> counters;
  for (int i = 0; i < kThreads; ++i) {
    counters.push_back(std::make_shared<Counter>());
  }
  at_once([&](int index) {
    for (int round = 0; round < 20; ++round) {
      FakeMode recorded(state, index % 2 == 0 ? counters[index] : nullptr);
      const at::Tensor x = torch::empty({2, 3});
      const FakeMode inner(state);  // continues recording
      x.t();
    }
  });
  for (int i = 0; i < kThreads; ++i) {
    EXPECT_EQ(counters[i]->calls, i % 2 == 0 ? 40 : 0);
  }
}

TEST(Threads, ConvertOneTensorToOneFake) {
  for (int round = 0; round < 20; ++round) {
    const auto state = c10::make_intrusive<ModeState>(FakeModeOptions{});
    at::Tensor real = torch::ones({4, 4}).set_requires_grad(true);
    real.mutable_grad() = torch::ones({4, 4});
    std::array<at::Tensor, kThreads> fakes;
    at_once([&](int index) { fakes[index] = from_tensor(real, state); });
    for (const at::Tensor& fake : fakes) {
      EXPECT_TRUE(fake.is_same(fakes[0]));
      EXPECT_TRUE(fake.grad().defined());
    }
  }
}

TEST(Threads, AskOneFakeForItsValue) {
  const auto state = c10::make_intrusive<ModeState>(FakeModeOptions{});
  at::Tensor shared;
  {
    FakeMode mode(state);
    shared = torch::full({}, 7, c10::kLong);
  }
  std::atomic<int> right{0};
  at_once([&](int /*index*/) {
    for (int round = 0; round < 50; ++round) {
      right += shared.item().toLong() == 7 ? 1 : 0;
      (void)as_fake(shared)->memo(ValueMemos::kItem);
    }
  });
  EXPECT_EQ(right, 50 * kThreads);
}

TEST(Threads, RunBackwardAtOnce) {
  std::atomic<int> right{0};
  at_once([&](int index) {
    FakeMode mode;
    const at::Tensor x = torch::empty({index + 1, 3}, on(kCuda0)).set_requires_grad(true);
    for (int round = 0; round < 10; ++round) {
      x.mm(x.t()).sum().backward();
    }
    right += x.grad().sizes() == x.sizes() ? 1 : 0;
  });
  EXPECT_EQ(right, kThreads);
}

}  // namespace torchfake::testing
