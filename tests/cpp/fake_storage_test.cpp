// A fake's storage: it has no data, and an observer is notified of every storage.
#include <torchfake/core/fake_storage.h>

#include <limits>
#include <map>

#include "testing.h"

namespace torchfake::testing {

namespace {

class Ledger final : public StorageObserver {
 public:
  void on_alloc(const Allocation& allocation) override {
    check_room(allocation.nbytes);
    live[allocation.id] = allocation.nbytes;
    allocated[allocation.device.str()] += allocation.nbytes;
    operators.emplace_back(allocation.op);
  }
  void on_resize(const Allocation& allocation, size_t old_nbytes) override {
    resized_right &= live[allocation.id] == old_nbytes;
    check_room(allocation.nbytes);
    live[allocation.id] = allocation.nbytes;
    operators.emplace_back(allocation.op);
    ++resizes;
  }
  void on_free(const void* id, c10::Device /*device*/, size_t nbytes) noexcept override {
    freed_right &= live[id] == nbytes;
    live.erase(id);
  }

  void check_room(size_t nbytes) const {
    TORCH_CHECK_WITH(OutOfMemoryError, nbytes <= largest, "out of claimed memory: ", nbytes, " bytes");
  }

  size_t largest = std::numeric_limits<size_t>::max();
  std::vector<std::string> operators;
  std::map<const void*, size_t> live;
  std::map<std::string, size_t> allocated;
  int resizes = 0;
  bool resized_right = true;
  bool freed_right = true;
};

}  // namespace

TEST(StorageObserver, HearsOfEveryStorageWithItsDeviceAndSize) {
  const auto ledger = std::make_shared<Ledger>();
  FakeMode mode(FakeModeOptions{.storage_observer = ledger});
  const at::Tensor x = torch::empty({16}, on(kCuda1));
  const at::Tensor y = x + x;
  const at::Tensor host = torch::zeros({4}, at::kDouble);
  EXPECT_EQ(ledger->allocated["cuda:1"], 128);
  EXPECT_EQ(ledger->allocated["cpu"], 32);
  EXPECT_EQ(ledger->live.size(), 3);
}

TEST(StorageObserver, HearsNothingOfViewsAndInPlaceOperators) {
  const auto ledger = std::make_shared<Ledger>();
  FakeMode mode(FakeModeOptions{.storage_observer = ledger});
  at::Tensor x = torch::empty({4, 4}, on(kCuda0));
  x.t().view({2, 2, 4}).add_(1);
  x.detach().zero_();
  EXPECT_EQ(ledger->allocated["cuda:0"], 64);
}

TEST(StorageObserver, HearsTheEndOfAStorageWhenItsLastTensorGoes) {
  const auto ledger = std::make_shared<Ledger>();
  FakeMode mode(FakeModeOptions{.storage_observer = ledger});
  at::Tensor view;
  {
    const at::Tensor x = torch::empty({16}, on(kCuda0));
    view = x.slice(0, 0, 2);
  }
  EXPECT_EQ(ledger->live.size(), 1);
  view.reset();
  EXPECT_TRUE(ledger->live.empty());
  EXPECT_TRUE(ledger->freed_right);
}

TEST(StorageObserver, HearsOfAResize) {
  const auto ledger = std::make_shared<Ledger>();
  FakeMode mode(FakeModeOptions{.storage_observer = ledger});
  at::Tensor x = torch::empty({16}, on(kCuda0));
  x.resize_({64});
  EXPECT_EQ(ledger->resizes, 1);
  EXPECT_TRUE(ledger->resized_right);
  EXPECT_EQ(ledger->live.begin()->second, 256);
  x.reset();
  EXPECT_TRUE(ledger->live.empty());
  EXPECT_TRUE(ledger->freed_right);
}

TEST(StorageObserver, LearnsTheOperatorOnAMissAndOnAHit) {
  const auto ledger = std::make_shared<Ledger>();
  FakeMode mode(FakeModeOptions{.storage_observer = ledger});
  const at::Tensor x = torch::empty({3, 7}, on(kCuda0));
  ledger->operators.clear();
  for (int i = 0; i < 3; ++i) {
    x.exp();
  }
  EXPECT_EQ(ledger->operators, std::vector<std::string>(3, "aten::exp"));
}

TEST(StorageObserver, MayRefuseWhatAnOperatorReturns) {
  const auto ledger = std::make_shared<Ledger>();
  FakeMode mode(FakeModeOptions{.storage_observer = ledger});
  const at::Tensor x = torch::empty({5, 7}, on(kCuda0));
  const size_t before = ledger->live.size();
  for (int i = 0; i < 3; ++i) {  // a miss, a hit of the shared table, a hit of the thread's
    ledger->largest = 4;
    EXPECT_THROW(x.exp(), c10::OutOfMemoryError);
    EXPECT_EQ(ledger->live.size(), before);
    ledger->largest = 1024;
    x.exp();
  }
}

TEST(StorageObserver, RefusesAResizeBeforeAnythingChanges) {
  const auto ledger = std::make_shared<Ledger>();
  FakeMode mode(FakeModeOptions{.storage_observer = ledger});
  const at::Tensor a = torch::empty({40}, on(kCuda0));
  for (int i = 0; i < 3; ++i) {
    at::Tensor out = torch::empty({2}, on(kCuda0));
    ledger->largest = 16;
    EXPECT_THROW(at::exp_out(out, a), c10::OutOfMemoryError);
    EXPECT_THROW(out.resize_({40}), c10::OutOfMemoryError);
    EXPECT_EQ(out.sizes(), c10::IntArrayRef({2}));
    EXPECT_EQ(out.storage().nbytes(), 8);
    EXPECT_EQ(ledger->live.at(storage_context(out.storage().unsafeGetStorageImpl())), 8);
    ledger->largest = 1024;
    at::exp_out(out, a);
    EXPECT_EQ(out.sizes(), c10::IntArrayRef({40}));
  }
}

TEST(StorageObserver, HearsOfAStorageThatIsResizedWithoutAnOperator) {
  const auto ledger = std::make_shared<Ledger>();
  FakeMode mode(FakeModeOptions{.storage_observer = ledger});
  const at::Tensor x = torch::empty({16}, on(kCuda0));
  c10::StorageImpl* storage = x.storage().unsafeGetStorageImpl();
  resize_storage(storage, 0);
  EXPECT_EQ(ledger->live.at(storage_context(storage)), 0);
  ledger->largest = 32;
  EXPECT_THROW(resize_storage(storage, 64), c10::OutOfMemoryError);
  EXPECT_EQ(storage->nbytes(), 0);
  EXPECT_TRUE(ledger->resized_right);
}

TEST(StorageObserver, OutlivesTheModeAsLongAsItsStoragesDo) {
  const auto ledger = std::make_shared<Ledger>();
  at::Tensor x;
  {
    FakeMode mode(FakeModeOptions{.storage_observer = ledger});
    x = torch::empty({16}, on(kCuda0));
  }
  const at::Tensor y = x + 1;
  EXPECT_EQ(ledger->live.size(), 2);
}

TEST(StorageObserver, BackwardFreesWhatForwardSaved) {
  const auto ledger = std::make_shared<Ledger>();
  FakeMode mode(FakeModeOptions{.storage_observer = ledger});
  const at::Tensor weight = torch::empty({32, 32}, on(kCuda0).requires_grad(true));
  {
    at::Tensor loss = weight.matmul(weight).tanh().pow(2).sum();
    EXPECT_EQ(ledger->live.size(), 3);  // the weight, what tanh saved, the loss
    loss.backward();
  }
  EXPECT_EQ(ledger->live.size(), 2);  // the weight and its gradient
}

TEST(FakeStorage, APointerToWriteThroughIsRefused) {
  FakeMode mode;
  const at::Tensor x = torch::empty({4}, on(kCuda0));
  const std::string message = message_of<DataAccessError>([&] { (void)x.mutable_data_ptr(); });
  EXPECT_NE(message.find("holds no data"), std::string::npos) << message;
  EXPECT_THROW((void)torch::empty({4}).data_ptr(), DataAccessError);
  // PyTorch's typed accessors check the pointer first and throw their own error.
  EXPECT_THROW((void)x.mutable_data_ptr<float>(), c10::Error);
}

TEST(FakeStorage, OnTheCpuAPointerFindsValuesThatAreKnown) {
  FakeMode mode;
  const at::Tensor x = torch::arange(4);
  EXPECT_EQ(x.const_data_ptr<int64_t>()[3], 3);
}

TEST(FakeStorage, NoContextIsMadeWhereNobodyListensAndNothingIsKnown) {
  FakeMode mode;
  // Too large to become known element by element.
  EXPECT_EQ(storage_context(storage_of(torch::empty({1000}, on(kCuda0)))), nullptr);
  EXPECT_EQ(storage_context(storage_of(torch::rand({100}))), nullptr);
}

}  // namespace torchfake::testing
