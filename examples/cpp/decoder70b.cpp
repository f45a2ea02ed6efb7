// Builds a decoder of 70 B parameters with torch::nn, and runs it forward and backward on an absent GPU.
#include <torch/torch.h>
#include <torchfake/torchfake.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>

namespace {

constexpr int64_t kVocabulary = 128256;
constexpr int64_t kLayers = 80;
constexpr int64_t kWidth = 8192;
constexpr int64_t kHidden = 28672;
constexpr int64_t kHeads = 64;
constexpr int64_t kKeyHeads = 8;
constexpr int64_t kHeadWidth = kWidth / kHeads;

torch::nn::Linear linear(int64_t in, int64_t out) {
  return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(false));
}

// Root-mean-square normalisation with a learned scale.
struct NormImpl : torch::nn::Module {
  NormImpl() : weight(register_parameter("weight", torch::ones({kWidth}))) {}

  torch::Tensor forward(const torch::Tensor& x) {
    return torch::rms_norm(x, {kWidth}, weight, 1e-5);
  }

  torch::Tensor weight;
};
TORCH_MODULE(Norm);

// Rotates queries or keys by an angle proportional to their position.
torch::Tensor rotate(const torch::Tensor& x) {
  const auto options = x.options().dtype(torch::kFloat);
  const torch::Tensor frequencies = torch::pow(500000.0, -torch::arange(0, kHeadWidth, 2, options) / kHeadWidth);
  const torch::Tensor angles = torch::outer(torch::arange(x.size(2), options), frequencies);
  const torch::Tensor cosine = angles.cos().to(x.scalar_type());
  const torch::Tensor sine = angles.sin().to(x.scalar_type());
  const std::vector<torch::Tensor> halves = x.chunk(2, -1);
  return torch::cat({halves[0] * cosine - halves[1] * sine, halves[1] * cosine + halves[0] * sine}, -1);
}

struct AttentionImpl : torch::nn::Module {
  AttentionImpl()
      : query(register_module("query", linear(kWidth, kWidth))),
        key(register_module("key", linear(kWidth, kKeyHeads * kHeadWidth))),
        value(register_module("value", linear(kWidth, kKeyHeads * kHeadWidth))),
        output(register_module("output", linear(kWidth, kWidth))) {}

  torch::Tensor forward(const torch::Tensor& x) {
    const auto heads = [&](torch::nn::Linear& layer, int64_t count) {
      return layer(x).view({x.size(0), x.size(1), count, kHeadWidth}).transpose(1, 2);
    };
    const torch::Tensor mixed = torch::scaled_dot_product_attention(
        rotate(heads(query, kHeads)),
        rotate(heads(key, kKeyHeads)),
        heads(value, kKeyHeads),
        /*attn_mask=*/{},
        /*dropout_p=*/0.0,
        /*is_causal=*/true,
        /*scale=*/std::nullopt,
        /*enable_gqa=*/true);
    return output(mixed.transpose(1, 2).reshape(x.sizes()));
  }

  torch::nn::Linear query, key, value, output;
};
TORCH_MODULE(Attention);

struct BlockImpl : torch::nn::Module {
  BlockImpl()
      : attention_norm(register_module("attention_norm", Norm())),
        attention(register_module("attention", Attention())),
        hidden_norm(register_module("hidden_norm", Norm())),
        gate(register_module("gate", linear(kWidth, kHidden))),
        up(register_module("up", linear(kWidth, kHidden))),
        down(register_module("down", linear(kHidden, kWidth))) {}

  torch::Tensor forward(torch::Tensor x) {
    x = x + attention(attention_norm(x));
    const torch::Tensor y = hidden_norm(x);
    return x + down(torch::silu(gate(y)) * up(y));
  }

  Norm attention_norm;
  Attention attention;
  Norm hidden_norm;
  torch::nn::Linear gate, up, down;
};
TORCH_MODULE(Block);

torch::nn::Sequential make_decoder() {
  torch::nn::Sequential decoder;
  decoder->push_back("tokens", torch::nn::Embedding(kVocabulary, kWidth));
  for (int64_t i = 0; i < kLayers; ++i) {
    decoder->push_back("block" + std::to_string(i), Block());
  }
  decoder->push_back("norm", Norm());
  decoder->push_back("logits", linear(kWidth, kVocabulary));
  return decoder;
}

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The peak memory of this process. getrusage would include the parent's peak.
double peak_mebibytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmHWM:", 0) == 0) {
      return std::stod(line.substr(6)) / 1024;
    }
  }
  return 0;
}

std::string describe(const torch::Tensor& tensor) {
  std::ostringstream text;
  text << tensor.sizes() << ' ' << tensor.dtype() << " on " << tensor.device();
  return text.str();
}

}  // namespace

int main() {
  const double memory_before = peak_mebibytes();
  const double start = seconds();
  torchfake::FakeMode mode;

  torch::nn::Sequential decoder = make_decoder();
  decoder->to(torch::kCUDA, torch::kBFloat16);
  const double built = seconds();

  const torch::Tensor tokens = torch::zeros({4, 4096}, torch::dtype(torch::kLong).device(torch::kCUDA));
  const torch::Tensor logits = decoder->forward(tokens);
  const torch::Tensor loss =
      torch::nn::functional::cross_entropy(logits.view({-1, kVocabulary}).to(torch::kFloat), tokens.view({-1}));
  const double ran = seconds();
  loss.backward();
  const double end = seconds();

  int64_t parameters = 0;
  int64_t gradients = 0;
  for (const torch::Tensor& parameter : decoder->parameters()) {
    parameters += parameter.numel();
    gradients += parameter.grad().sizes() == parameter.sizes() && torchfake::is_fake(parameter.grad());
  }
  std::printf(
      "parameters:  %.2f B in %zu tensors\n", static_cast<double>(parameters) / 1e9, decoder->parameters().size());
  std::printf("tokens:      %s\n", describe(tokens).c_str());
  std::printf("logits:      %s\n", describe(logits).c_str());
  std::printf("loss:        %s\n", describe(loss).c_str());
  std::printf("gradients:   %ld, each of its parameter's size\n", static_cast<long>(gradients));
  std::printf("time:        %.2f s to build, %.2f s forward, %.2f s backward\n", built - start, ran - built, end - ran);
  std::printf("memory:      %.0f MiB at the peak, %.0f MiB of it before the model\n", peak_mebibytes(), memory_before);
}
