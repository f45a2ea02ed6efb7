// The cost of a cache hit compared with the real operator on 16x16 CPU tensors, both called from C++ through at::.
//
// Each case runs as real/NAME and as fake/NAME: the same function on the same arguments. On fakes only the first call
// runs a kernel, before the measurement starts.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>

#include <torchfake/torchfake.h>

#include <string>
#include <vector>

namespace {

struct Inputs {
  at::Tensor x = at::rand({16, 16});
  at::Tensor y = at::rand({16, 16});
  at::Tensor row = at::rand({16});
  at::Tensor batch = at::rand({4, 16, 16});
  at::Tensor picture = at::rand({2, 4, 8, 8});
  at::Tensor kernel = at::rand({4, 4, 3, 3});
  at::Tensor heads = at::rand({2, 4, 16, 8});
  at::Tensor ids = at::arange(16).remainder(7);
  at::Tensor mask = x.gt(0.5);
};

struct Case {
  const char* name;
  void (*call)(Inputs& in);
};

template <typename Value>
void keep(Value&& value) {
  benchmark::DoNotOptimize(value);
}

const Case kCases[] = {
    {"empty", [](Inputs& in) { keep(at::empty({16, 16})); }},
    {"empty_like", [](Inputs& in) { keep(at::empty_like(in.x)); }},
    {"zeros_1d_1e5", [](Inputs& in) { keep(at::zeros({100'000})); }},
    {"detach", [](Inputs& in) { keep(in.x.detach()); }},
    {"alias", [](Inputs& in) { keep(at::alias(in.x)); }},
    {"view", [](Inputs& in) { keep(in.x.view({256})); }},
    {"transpose", [](Inputs& in) { keep(in.x.transpose(0, 1)); }},
    {"select", [](Inputs& in) { keep(in.x.select(0, 3)); }},
    {"slice", [](Inputs& in) { keep(in.x.slice(0, 2, 9)); }},
    {"expand", [](Inputs& in) { keep(in.row.expand({16, 16})); }},
    {"add", [](Inputs& in) { keep(at::add(in.x, in.y)); }},
    {"add_number", [](Inputs& in) { keep(at::add(in.x, 2)); }},
    {"mul_broadcast", [](Inputs& in) { keep(at::mul(in.x, in.row)); }},
    {"exp", [](Inputs& in) { keep(at::exp(in.x)); }},
    {"gelu", [](Inputs& in) { keep(at::gelu(in.x)); }},
    {"where", [](Inputs& in) { keep(at::where(in.mask, in.x, in.y)); }},
    {"add_in_place", [](Inputs& in) { keep(in.x.add_(in.y)); }},
    {"add_out", [](Inputs& in) { keep(at::add_out(in.x, in.y, in.row)); }},
    {"to_half", [](Inputs& in) { keep(in.x.to(at::kHalf)); }},
    {"sum", [](Inputs& in) { keep(at::sum(in.x, {1}, false)); }},
    {"amax", [](Inputs& in) { keep(at::amax(in.x, {1}, false)); }},
    {"softmax", [](Inputs& in) { keep(at::softmax(in.x, -1)); }},
    {"cumsum", [](Inputs& in) { keep(at::cumsum(in.x, 1)); }},
    {"sort", [](Inputs& in) { keep(at::sort(in.x, -1, false)); }},
    {"topk", [](Inputs& in) { keep(at::topk(in.x, 4)); }},
    {"mm", [](Inputs& in) { keep(at::mm(in.x, in.y)); }},
    {"addmm", [](Inputs& in) { keep(at::addmm(in.row, in.x, in.y)); }},
    {"bmm", [](Inputs& in) { keep(at::bmm(in.batch, in.batch)); }},
    {"linear", [](Inputs& in) { keep(at::linear(in.x, in.y, in.row)); }},
    {"layer_norm", [](Inputs& in) { keep(at::layer_norm(in.x, {16}, in.row, in.row)); }},
    {"embedding", [](Inputs& in) { keep(at::embedding(in.x, in.ids)); }},
    {"index_select", [](Inputs& in) { keep(at::index_select(in.x, 0, in.ids)); }},
    {"conv2d", [](Inputs& in) { keep(at::conv2d(in.picture, in.kernel)); }},
    {"max_pool2d", [](Inputs& in) { keep(at::max_pool2d(in.picture, {2, 2})); }},
    {"sdpa", [](Inputs& in) { keep(at::scaled_dot_product_attention(in.heads, in.heads, in.heads)); }},
    {"cat", [](Inputs& in) { keep(at::cat({in.x, in.y})); }},
    {"stack", [](Inputs& in) { keep(at::stack({in.x, in.y})); }},
    {"split", [](Inputs& in) { keep(at::split(in.x, 4)); }},
    {"bernoulli", [](Inputs& in) { keep(at::bernoulli(in.x, 0.5)); }},
    {"foreach_add", [](Inputs& in) { keep(at::_foreach_add({in.x, in.y, in.row}, 1)); }},
};

// Creation and destruction, the two halves of `empty`, measured separately for a thousand tensors at a time.
constexpr int64_t kBatch = 1000;

void create(benchmark::State& state) {
  std::vector<at::Tensor> tensors;
  tensors.reserve(kBatch);
  for ([[maybe_unused]] const auto step : state) {
    for (int64_t i = 0; i < kBatch; ++i) {
      tensors.push_back(at::empty({16, 16}));
    }
    state.PauseTiming();
    tensors.clear();
    state.ResumeTiming();
  }
  state.SetItemsProcessed(state.iterations() * kBatch);
}

void destroy(benchmark::State& state) {
  std::vector<at::Tensor> tensors;
  tensors.reserve(kBatch);
  for ([[maybe_unused]] const auto step : state) {
    state.PauseTiming();
    for (int64_t i = 0; i < kBatch; ++i) {
      tensors.push_back(at::empty({16, 16}));
    }
    state.ResumeTiming();
    tensors.clear();
  }
  state.SetItemsProcessed(state.iterations() * kBatch);
}

void run(benchmark::State& state, void (*call)(Inputs& in)) {
  Inputs inputs;
  try {
    call(inputs);
  } catch (const c10::Error& error) {
    state.SkipWithError(error.what_without_backtrace());
    return;
  }
  for ([[maybe_unused]] const auto step : state) {
    call(inputs);
  }
}

template <typename Body>
void register_pair(const std::string& name, Body body) {
  benchmark::RegisterBenchmark(("real/" + name).c_str(), [body](benchmark::State& state) { body(state); });
  benchmark::RegisterBenchmark(("fake/" + name).c_str(), [body](benchmark::State& state) {
    torchfake::FakeMode mode;
    body(state);
  });
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
    return 1;
  }
  at::set_num_threads(1);
  for (const Case& one : kCases) {
    register_pair(one.name, [call = one.call](benchmark::State& state) { run(state, call); });
  }
  register_pair("create_1000", create);
  register_pair("destroy_1000", destroy);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
