// A training step of torch::nn modules with torch::optim, on an absent GPU.
#include "testing.h"

namespace torchfake::testing {

namespace {

torch::nn::Sequential make_model() {
  torch::nn::Sequential model(
      torch::nn::Linear(8, 16),
      torch::nn::LayerNorm(torch::nn::LayerNormOptions({16})),
      torch::nn::GELU(),
      torch::nn::Dropout(0.1),
      torch::nn::Linear(16, 4));
  model->to(torch::kCUDA);
  return model;
}

template <typename Optimizer, typename Options>
void expect_a_training_step(const Options& options) {
  FakeMode mode;
  torch::nn::Sequential model = make_model();
  Optimizer optimizer(model->parameters(), options);
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const at::Tensor target = torch::zeros({5}, on(kCuda0).dtype(at::kLong));
    const at::Tensor loss =
        torch::nn::functional::cross_entropy(model->forward(torch::rand({5, 8}, on(kCuda0))), target);
    loss.backward();
    optimizer.step();
    EXPECT_EQ(loss.device(), kCuda0);
    EXPECT_EQ(loss.dim(), 0);
  }
  for (const at::Tensor& parameter : model->parameters()) {
    EXPECT_TRUE(is_fake(parameter));
    EXPECT_EQ(parameter.device(), kCuda0);
    EXPECT_EQ(parameter.grad().device(), kCuda0);
    EXPECT_GT(parameter._version(), 0);
  }
}

}  // namespace

TEST(Training, AModuleBuiltInTheModeHasFakeParameters) {
  FakeMode mode;
  const torch::nn::Linear layer(1 << 20, 1 << 20);
  EXPECT_TRUE(is_fake(layer->weight));
  EXPECT_TRUE(layer->weight.requires_grad());
  EXPECT_TRUE(layer->weight.is_leaf());
}

TEST(Training, AStepOfSgdWithMomentum) {
  expect_a_training_step<torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9));
}

TEST(Training, AStepOfAdamW) {
  expect_a_training_step<torch::optim::AdamW>(torch::optim::AdamWOptions(1e-3));
}

TEST(Training, AConvolutionalNetworkRunsForwardAndBackward) {
  FakeMode mode;
  torch::nn::Sequential model(
      torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 3).padding(1)),
      torch::nn::BatchNorm2d(8),
      torch::nn::ReLU(),
      torch::nn::MaxPool2d(2));
  model->to(torch::kCUDA);
  const at::Tensor y = model->forward(torch::rand({2, 3, 8, 8}, on(kCuda0)));
  EXPECT_EQ(y.sizes(), at::IntArrayRef({2, 8, 4, 4}));
  y.sum().backward();
  EXPECT_EQ(model->parameters()[0].grad().sizes(), at::IntArrayRef({8, 3, 3, 3}));
}

TEST(Training, AnEmbeddingLearns) {
  FakeMode mode;
  torch::nn::Embedding embedding(100, 8);
  embedding->to(torch::kCUDA);
  const at::Tensor y = embedding->forward(torch::zeros({2, 5}, on(kCuda0).dtype(at::kLong)));
  EXPECT_EQ(y.sizes(), at::IntArrayRef({2, 5, 8}));
  y.sum().backward();
  EXPECT_EQ(embedding->weight.grad().sizes(), at::IntArrayRef({100, 8}));
}

}  // namespace torchfake::testing
