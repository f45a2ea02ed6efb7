// Unboxed calls: keys built from C++ arguments equal those built from boxed ones, and only plain hits are handled.
#include <torchfake/cache/shape_cache.h>
#include <torchfake/dispatch/unboxed_call.h>

#include <thread>

#include "testing.h"

namespace torchfake::testing {

namespace {

const OpTraits& traits_of(const char* name, const char* overload = "") {
  return OpTraits::of(c10::Dispatcher::singleton().findSchemaOrThrow(name, overload));
}

// Whether a call with these arguments, which has been made before, is handled unboxed.
template <typename... Args>
bool answered_unboxed(const OpTraits& traits, const Args&... args) {
  if (!UnboxedCall::possible(traits)) {
    return false;
  }
  // The kernel runs below autograd, and the excluded keys are part of the key.
  std::optional<at::AutoDispatchBelowADInplaceOrView> below_autograd;
  if (traits.takes_tensors) {
    below_autograd.emplace();
  }
  UnboxedCall call(traits);
  const ArgTraits* facts = traits.args.begin();
  (call.add(*facts++, args), ...);
  return call.find() != nullptr;
}

// Makes the call twice: the first fills the process's table, the second the thread's.
template <typename Function>
void twice(const Function& function) {
  function();
  function();
}

const std::optional<at::Tensor> kNoTensor;

}  // namespace

TEST(UnboxedCall, AgreesWithBoxesOnTensorsAndNumbers) {
  FakeMode mode(FakeModeOptions{.drawn_values = 0});
  const at::Tensor x = torch::randn({16, 16});
  twice([&] { x.add(x); });
  EXPECT_TRUE(answered_unboxed(traits_of("aten::add", "Tensor"), x, x, at::Scalar(1)));
  EXPECT_TRUE(answered_unboxed(traits_of("aten::add", "Tensor"), x, x, at::Scalar(2)));  // a factor: type only
  EXPECT_FALSE(answered_unboxed(traits_of("aten::add", "Tensor"), x, x, at::Scalar(1.0)));
  EXPECT_FALSE(answered_unboxed(traits_of("aten::add", "Tensor"), x, x.t(), at::Scalar(1)));
  // With fewer elements, bounds would be derived.
  twice([&] { x.clamp(0.5, std::nullopt); });
  using Bound = std::optional<at::Scalar>;
  EXPECT_TRUE(answered_unboxed(traits_of("aten::clamp"), x, Bound(0.5), Bound()));
  EXPECT_FALSE(answered_unboxed(traits_of("aten::clamp"), x, Bound(0.25), Bound()));
}

TEST(UnboxedCall, AgreesWithBoxesOnListsAndOptions) {
  FakeMode mode(FakeModeOptions{.drawn_values = 0});
  const at::Tensor x = torch::randn({4, 4});
  const std::vector<at::Tensor> pair{x, x};
  twice([&] { at::cat(pair, 1); });
  EXPECT_TRUE(answered_unboxed(traits_of("aten::cat"), at::ITensorListRef(pair), int64_t{1}));
  twice([&] { at::_foreach_add(pair, 1); });
  EXPECT_TRUE(answered_unboxed(traits_of("aten::_foreach_add", "Scalar"), at::TensorList(pair), at::Scalar(1)));
  twice([&] { x.sum({1}, true, c10::kDouble); });
  const std::vector<int64_t> dims{1};
  EXPECT_TRUE(answered_unboxed(
      traits_of("aten::sum", "dim_IntList"),
      x,
      at::OptionalIntArrayRef(dims),
      true,
      std::optional<at::ScalarType>(c10::kDouble)));
  twice([&] { at::gelu(x, "tanh"); });
  EXPECT_TRUE(answered_unboxed(traits_of("aten::gelu"), x, c10::string_view("tanh")));
  const at::Tensor rows = torch::empty({2}, c10::kLong);
  const c10::List<std::optional<at::Tensor>> indices({kNoTensor, rows});
  twice([&] { at::index(x, indices); });
  EXPECT_TRUE(answered_unboxed(traits_of("aten::index", "Tensor"), x, indices));
}

TEST(UnboxedCall, AgreesWithBoxesOnFactories) {
  FakeMode mode(FakeModeOptions{.drawn_values = 0});
  twice([] { at::empty({16, 16}, c10::kFloat, c10::kStrided, kCuda1, false, std::nullopt); });
  const std::vector<c10::SymInt> sizes{16, 16};
  EXPECT_TRUE(answered_unboxed(
      traits_of("aten::empty", "memory_format"),
      c10::SymIntArrayRef(sizes),
      std::optional<at::ScalarType>(c10::kFloat),
      std::optional<at::Layout>(c10::kStrided),
      std::optional<at::Device>(kCuda1),
      std::optional<bool>(false),
      std::optional<at::MemoryFormat>()));
}

TEST(UnboxedCall, KnownValuesTakeTheLongWayUntilTheirResultIsStored) {
  FakeMode mode(FakeModeOptions{.drawn_values = 0});
  const at::Tensor known = torch::ones({4});
  const at::Tensor others = torch::full({4}, 3);
  const at::Tensor unknown = torch::randn({4});
  twice([&] { known.add(known); });
  EXPECT_TRUE(answered_unboxed(traits_of("aten::add", "Tensor"), known, known, at::Scalar(1)));
  EXPECT_FALSE(answered_unboxed(traits_of("aten::add", "Tensor"), others, others, at::Scalar(1)));  // other values
  twice([&] { known.add(unknown); });
  EXPECT_TRUE(answered_unboxed(traits_of("aten::add", "Tensor"), known, unknown, at::Scalar(1)));  // unknown result
  EXPECT_TRUE(answered_unboxed(traits_of("aten::add", "Tensor"), unknown, unknown, at::Scalar(1)));
  twice([&] { unknown.zero_(); });
  EXPECT_EQ(unknown.sum().item<float>(), 0);
}

TEST(UnboxedCall, AConstantIsTheCallersOwn) {
  FakeMode mode(FakeModeOptions{.drawn_values = 0});
  for (int i = 0; i < 4; ++i) {
    at::Tensor x = at::full({2, 3}, 7, c10::kLong, std::nullopt, std::nullopt, std::nullopt);
    EXPECT_EQ(x.sum().item<int64_t>(), 42);
    x.select(0, 1).zero_();
    EXPECT_EQ(x.sum().item<int64_t>(), 21);
    EXPECT_EQ(torch::full({2, 3}, 8).sum().item<int64_t>(), 48);
    EXPECT_EQ(torch::arange(5, on(kCuda0)).sum().item<int64_t>(), 10);
    EXPECT_EQ(torch::zeros_like(x).sum().item<int64_t>(), 0);
  }
  const std::vector<c10::SymInt> sizes{2, 3};
  EXPECT_TRUE(answered_unboxed(
      traits_of("aten::full"),
      c10::SymIntArrayRef(sizes),
      at::Scalar(7),
      std::optional<at::ScalarType>(c10::kLong),
      std::optional<at::Layout>(),
      std::optional<at::Device>(),
      std::optional<bool>()));
}

TEST(UnboxedCall, AMaskTakesTheLongWay) {
  FakeMode mode(FakeModeOptions{.drawn_values = 0});
  const at::Tensor x = torch::rand({4});
  const c10::List<std::optional<at::Tensor>> indices({x.gt(0.5)});
  EXPECT_FALSE(answered_unboxed(traits_of("aten::index", "Tensor"), x, indices));
  EXPECT_THROW(at::index(x, indices), FakeTensorError);
}

TEST(UnboxedCall, AnswersAsTheLongWayDoes) {
  FakeMode mode(FakeModeOptions{.drawn_values = 0});
  at::Tensor x = torch::rand({4, 4});
  at::Tensor out = torch::rand({0});
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(x.add_(1).unsafeGetTensorImpl(), x.unsafeGetTensorImpl());
    EXPECT_EQ(at::add_out(out, x, x).unsafeGetTensorImpl(), out.unsafeGetTensorImpl());
    EXPECT_EQ(out.sizes(), x.sizes());
    const auto [values, indices] = x.max(0);
    EXPECT_EQ(values.scalar_type(), c10::kFloat);
    EXPECT_EQ(indices.scalar_type(), c10::kLong);
    const std::vector<at::Tensor> parts = x.split(3, 1);
    ASSERT_EQ(parts.size(), 2);
    EXPECT_EQ(parts[1].sizes(), at::IntArrayRef({4, 1}));
    EXPECT_EQ(parts[1].storage_offset(), 3);
    EXPECT_TRUE(parts[1].is_alias_of(x));
    EXPECT_FALSE(parts[0].is_contiguous());
    EXPECT_TRUE(
        torch::rand({2, 3, 4, 5})
            .to(at::MemoryFormat::ChannelsLast)
            .mul(2)
            .is_contiguous(at::MemoryFormat::ChannelsLast));
  }
  EXPECT_EQ(x._version(), 3);
}

TEST(UnboxedCall, TensorsMayDieOnAnotherThread) {
  FakeMode mode(FakeModeOptions{.drawn_values = 0});
  for (int round = 0; round < 3; ++round) {
    std::vector<at::Tensor> tensors;
    for (int i = 0; i < 200; ++i) {
      tensors.push_back(torch::empty({8, i + 1}));
    }
    std::thread([tensors = std::move(tensors)]() mutable { tensors.clear(); }).join();
  }
  EXPECT_EQ(torch::empty({8, 5}).numel(), 40);
}

}  // namespace torchfake::testing
