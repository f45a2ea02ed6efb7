// Whole models of torch::nn, trained in a process without Python, on the CPU and on an absent GPU.
#include <ATen/autocast_mode.h>

#include "testing.h"

namespace torchfake::testing {

namespace {

namespace nn = torch::nn;
namespace F = torch::nn::functional;

// ---- The models -----------------------------------------------------------------------------------------------------

struct BlockImpl : nn::Module {
  BlockImpl(int64_t in, int64_t out, int64_t stride)
      : conv1(nn::Conv2dOptions(in, out, 3).stride(stride).padding(1).bias(false)),
        conv2(nn::Conv2dOptions(out, out, 3).padding(1).bias(false)),
        norm1(out),
        norm2(out) {
    register_module("conv1", conv1);
    register_module("norm1", norm1);
    register_module("conv2", conv2);
    register_module("norm2", norm2);
    if (stride != 1 || in != out) {
      shortcut = register_module(
          "shortcut",
          nn::Sequential(nn::Conv2d(nn::Conv2dOptions(in, out, 1).stride(stride).bias(false)), nn::BatchNorm2d(out)));
    }
  }

  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = norm2(conv2(torch::relu(norm1(conv1(x)))));
    return torch::relu(y + (shortcut.is_empty() ? x : shortcut->forward(x)));
  }

  nn::Conv2d conv1, conv2;
  nn::BatchNorm2d norm1, norm2;
  nn::Sequential shortcut{nullptr};
};
TORCH_MODULE(Block);

struct ResNetImpl : nn::Module {
  ResNetImpl() {
    register_module("stem", stem);
    register_module("layers", layers);
    register_module("head", head);
  }

  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor features =
        layers->forward(F::max_pool2d(stem->forward(x), F::MaxPool2dFuncOptions(3).stride(2).padding(1)));
    return head(F::adaptive_avg_pool2d(features, F::AdaptiveAvgPool2dFuncOptions(1)).flatten(1));
  }

  nn::Sequential stem{
      nn::Conv2d(nn::Conv2dOptions(3, 16, 7).stride(2).padding(3).bias(false)),
      nn::BatchNorm2d(16),
      nn::ReLU()};
  nn::Sequential layers{Block(16, 16, 1), Block(16, 32, 2), Block(32, 64, 2)};
  nn::Linear head{64, 10};
};
TORCH_MODULE(ResNet);

nn::Sequential two_convolutions(int64_t in, int64_t out) {
  return nn::Sequential(
      nn::Conv2d(nn::Conv2dOptions(in, out, 3).padding(1)),
      nn::GroupNorm(nn::GroupNormOptions(4, out)),
      nn::SiLU(),
      nn::Conv2d(nn::Conv2dOptions(out, out, 3).padding(1)),
      nn::GroupNorm(nn::GroupNormOptions(4, out)),
      nn::SiLU());
}

struct UNetImpl : nn::Module {
  UNetImpl() {
    register_module("down1", down1);
    register_module("down2", down2);
    register_module("bottom", bottom);
    register_module("up2", up2);
    register_module("merge2", merge2);
    register_module("merge1", merge1);
    register_module("head", head);
  }

  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor a = down1->forward(x);
    const at::Tensor b = down2->forward(F::max_pool2d(a, F::MaxPool2dFuncOptions(2)));
    const at::Tensor c = bottom->forward(F::avg_pool2d(b, F::AvgPool2dFuncOptions(2)));
    const at::Tensor d = merge2->forward(torch::cat({b, up2->forward(c)}, 1));
    const at::Tensor e = F::interpolate(
        d,
        F::InterpolateFuncOptions()
            .scale_factor(std::vector<double>{2, 2})
            .mode(torch::kBilinear)
            .align_corners(false));
    return head->forward(merge1->forward(torch::cat({a, e}, 1)));
  }

  nn::Sequential down1 = two_convolutions(3, 8);
  nn::Sequential down2 = two_convolutions(8, 16);
  nn::Sequential bottom = two_convolutions(16, 32);
  nn::ConvTranspose2d up2{nn::ConvTranspose2dOptions(32, 16, 2).stride(2)};
  nn::Sequential merge2 = two_convolutions(32, 16);
  nn::Sequential merge1 = two_convolutions(24, 8);
  nn::Conv2d head{nn::Conv2dOptions(8, 5, 1)};
};
TORCH_MODULE(UNet);

// ---- A step of training ---------------------------------------------------------------------------------------------

template <typename Model>
void expect_trained(Model& model, const at::Tensor& loss, c10::Device device) {
  EXPECT_EQ(loss.dim(), 0);
  EXPECT_EQ(loss.device(), device);
  loss.backward();
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
  optimizer.step();
  for (const auto& parameter : model->named_parameters()) {
    ASSERT_TRUE(parameter.value().grad().defined()) << parameter.key();
    EXPECT_EQ(parameter.value().grad().sizes(), parameter.value().sizes()) << parameter.key();
    EXPECT_EQ(parameter.value().grad().device(), device) << parameter.key();
    EXPECT_TRUE(is_fake(parameter.value())) << parameter.key();
  }
}

at::Tensor tokens(c10::IntArrayRef sizes, c10::Device device) {
  return torch::randint(100, sizes, on(device).dtype(at::kLong));
}

class Models : public ::testing::TestWithParam<c10::Device> {
 protected:
  c10::Device device() const {
    return GetParam();
  }
  // No kernel may run for real, not even on zeros. Attention compares its inputs.
  FakeMode mode_{FakeModeOptions{.drawn_values = 0, .distinct_tensors_differ = true, .allow_fallback_kernels = false}};
};

TEST_P(Models, AResNetTrains) {
  ResNet model;
  model->to(device());
  const at::Tensor y = model->forward(torch::rand({2, 3, 64, 64}, on(device())));
  EXPECT_EQ(y.sizes(), at::IntArrayRef({2, 10}));
  expect_trained(model, F::cross_entropy(y, tokens({2}, device())), device());
}

TEST_P(Models, AResNetTrainsInChannelsLastOrder) {
  ResNet model;
  model->to(device());
  const at::Tensor x = torch::rand({2, 3, 64, 64}, on(device())).contiguous(at::MemoryFormat::ChannelsLast);
  const at::Tensor y = model->layers->forward(model->stem->forward(x));
  EXPECT_TRUE(y.is_contiguous(at::MemoryFormat::ChannelsLast));
  expect_trained(model, F::cross_entropy(model->forward(x), tokens({2}, device())), device());
}

TEST_P(Models, AUNetTrains) {
  UNet model;
  model->to(device());
  const at::Tensor y = model->forward(torch::rand({2, 3, 32, 32}, on(device())));
  EXPECT_EQ(y.sizes(), at::IntArrayRef({2, 5, 32, 32}));
  expect_trained(model, F::cross_entropy(y, tokens({2, 32, 32}, device())), device());
}

template <typename Layer, typename Options>
void expect_recurrent_layer_trains(c10::Device device) {
  Layer model(Options(8, 16).num_layers(2).bidirectional(true).batch_first(true).dropout(0.1));
  model->to(device);
  const auto [y, state] = model->forward(torch::rand({4, 7, 8}, on(device)));
  EXPECT_EQ(y.sizes(), at::IntArrayRef({4, 7, 32}));
  expect_trained(model, F::mse_loss(y, torch::zeros_like(y)), device);
}

TEST_P(Models, AnLstmTrains) {
  expect_recurrent_layer_trains<nn::LSTM, nn::LSTMOptions>(device());
}

TEST_P(Models, AGruTrains) {
  expect_recurrent_layer_trains<nn::GRU, nn::GRUOptions>(device());
}

TEST_P(Models, AnRnnTrains) {
  expect_recurrent_layer_trains<nn::RNN, nn::RNNOptions>(device());
}

TEST_P(Models, ATransformerTrains) {
  nn::Transformer model(nn::TransformerOptions(16, 4).num_encoder_layers(2).num_decoder_layers(2).dim_feedforward(32));
  model->to(device());
  const at::Tensor source = torch::rand({9, 2, 16}, on(device()));
  const at::Tensor target = torch::rand({7, 2, 16}, on(device()));
  const at::Tensor mask = nn::TransformerImpl::generate_square_subsequent_mask(7).to(device());
  const at::Tensor padding = torch::zeros({2, 9}, on(device()).dtype(at::kBool));
  const at::Tensor y = model->forward(source, target, {}, mask, {}, padding, {}, padding);
  EXPECT_EQ(y.sizes(), at::IntArrayRef({7, 2, 16}));
  expect_trained(model, F::l1_loss(y, torch::zeros_like(y)), device());
}

// The lengths are equal, so only the values could distinguish the two sequences.
TEST_P(Models, ATransformerTrainsOnSequencesOfTheSameLength) {
  nn::Transformer model(nn::TransformerOptions(16, 4).num_encoder_layers(1).num_decoder_layers(1).dim_feedforward(32));
  model->to(device());
  const at::Tensor y = model->forward(torch::rand({7, 2, 16}, on(device())), torch::rand({7, 2, 16}, on(device())));
  expect_trained(model, y.sum(), device());
}

TEST_P(Models, AttentionGivesItsWeights) {
  nn::MultiheadAttention model(nn::MultiheadAttentionOptions(16, 4));
  model->to(device());
  const at::Tensor x = torch::rand({7, 2, 16}, on(device()));
  const auto [y, weights] = model->forward(x, x, x);
  EXPECT_EQ(y.sizes(), at::IntArrayRef({7, 2, 16}));
  EXPECT_EQ(weights.sizes(), at::IntArrayRef({2, 7, 7}));
  expect_trained(model, y.sum(), device());
}

TEST_P(Models, AModelOfBfloat16Trains) {
  nn::TransformerEncoder model(
      nn::TransformerEncoderOptions(nn::TransformerEncoderLayer(nn::TransformerEncoderLayerOptions(16, 4)), 2));
  model->to(device(), at::kBFloat16);
  const at::Tensor y = model->forward(torch::rand({7, 2, 16}, on(device()).dtype(at::kBFloat16)));
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  expect_trained(model, y.sum(), device());
}

// Enables autocast in a scope.
class Autocast {
 public:
  explicit Autocast(c10::Device device) : type_(device.type()), was_(at::autocast::is_autocast_enabled(type_)) {
    at::autocast::set_autocast_enabled(type_, true);
    at::autocast::set_autocast_dtype(type_, at::kBFloat16);
    at::autocast::increment_nesting();
  }
  ~Autocast() {
    if (at::autocast::decrement_nesting() == 0) {
      at::autocast::clear_cache();
    }
    at::autocast::set_autocast_enabled(type_, was_);
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  c10::DeviceType type_;
  bool was_;
};

TEST_P(Models, AutocastComputesInBfloat16) {
  ResNet model;
  model->to(device());
  at::Tensor y;
  {
    Autocast autocast(device());
    y = model->forward(torch::rand({2, 3, 64, 64}, on(device())));
  }
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  expect_trained(model, F::cross_entropy(y.to(at::kFloat), tokens({2}, device())), device());
  EXPECT_EQ(model->head->weight.grad().scalar_type(), at::kFloat);
}

template <typename Optimizer, typename Options>
void expect_steps(c10::Device device, const Options& options) {
  nn::Sequential model(nn::Linear(8, 8), nn::LayerNorm(nn::LayerNormOptions({8})), nn::Linear(8, 2));
  model->to(device);
  Optimizer optimizer(model->parameters(), options);
  for (int step = 0; step < 3; ++step) {
    const auto loss_of = [&] {
      optimizer.zero_grad();
      at::Tensor loss = F::cross_entropy(model->forward(torch::rand({5, 8}, on(device))), tokens({5}, device));
      loss.backward();
      return loss;
    };
    loss_of();
    optimizer.step();
  }
  for (const at::Tensor& parameter : model->parameters()) {
    EXPECT_EQ(parameter.device(), device);
    EXPECT_GE(parameter._version(), 1);
  }
}

TEST_P(Models, EveryOptimizerSteps) {
  using namespace torch::optim;
  expect_steps<SGD>(device(), SGDOptions(0.1).momentum(0.9).nesterov(true).weight_decay(1e-2));
  expect_steps<Adam>(device(), AdamOptions(1e-3).amsgrad(true));
  expect_steps<AdamW>(device(), AdamWOptions(1e-3));
  expect_steps<RMSprop>(device(), RMSpropOptions(1e-2).centered(true).momentum(0.9));
  expect_steps<Adagrad>(device(), AdagradOptions(1e-2));
}

TEST_P(Models, LargeModelsNeedNoMemory) {
  nn::Sequential model(nn::Linear(1 << 16, 1 << 16), nn::ReLU(), nn::Linear(1 << 16, 1 << 16));
  model->to(device());
  const at::Tensor y = model->forward(torch::rand({1 << 12, 1 << 16}, on(device())));
  expect_trained(model, y.sum(), device());
}

INSTANTIATE_TEST_SUITE_P(Devices, Models, ::testing::Values(c10::Device(c10::kCPU), kCuda0), [](const auto& info) {
  return info.param.is_cpu() ? "Cpu" : "Cuda";
});

}  // namespace

}  // namespace torchfake::testing
