// Recurrent networks as oneDNN runs them on the CPU, over symbols.
#include <torchfake/rules/onednn_recurrent.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/mkldnn_rnn_layer.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>

#include <torchfake/core/kernel_environment.h>
#include <torchfake/dispatch/symbolic_call.h>
#include <torchfake/rules/rules.h>

#include <algorithm>

namespace torchfake {

namespace {

constexpr int64_t kLstmMode = 2;

// (input, hidden states, weights, has_biases, num_layers, dropout, train, bidirectional, batch_first)
struct Network {
  explicit Network(const Call& call)
      : input(call.arg(0).toTensor()),
        hidden(call.arg(1).toTensorVector()),
        weights(call.arg(2).toTensorVector()),
        has_biases(call.arg(3).toBool()),
        num_layers(call.arg(4).toInt()),
        dropout(call.arg(5).toDouble()),
        train(call.arg(6).toBool()),
        bidirectional(call.arg(7).toBool()),
        batch_first(call.arg(8).toBool()) {}

  at::Tensor input;
  std::vector<at::Tensor> hidden;
  std::vector<at::Tensor> weights;
  bool has_biases;
  int64_t num_layers;
  double dropout;
  bool train;
  bool bidirectional;
  bool batch_first;

  int64_t directions() const {
    return bidirectional ? 2 : 1;
  }
  size_t weights_per_layer() const {
    return has_biases ? 4 : 2;
  }
};

// PyTorch's conditions, for float32. Invalid arguments are left to PyTorch's own checks.
bool onednn_takes(const Network& network) {
  const auto is_plain = [](const at::Tensor& tensor) { return tensor.is_cpu() && tensor.scalar_type() == c10::kFloat; };
  return KernelEnvironment::enabled(KernelEnvironment::kMkldnn) && is_plain(network.input) &&
      std::all_of(network.hidden.begin(), network.hidden.end(), is_plain) &&
      std::all_of(network.weights.begin(), network.weights.end(), is_plain) && network.hidden.size() == 2 &&
      network.input.dim() == 3 && network.hidden[0].dim() == 3 && network.hidden[1].dim() == 3 &&
      network.hidden[0].sym_size(2).sym_eq(network.hidden[1].sym_size(2)).expect_true(__FILE__, __LINE__) &&
      network.weights.size() ==
      static_cast<size_t>(network.num_layers * network.directions()) * network.weights_per_layer() &&
      network.input.sym_numel().sym_ne(0).expect_true(__FILE__, __LINE__);
}

}  // namespace

bool onednn_lstm(const Call& call) {
  const Network network(call);
  if (!has_symbols(call) || !onednn_takes(network)) {
    return false;
  }
  const int64_t hidden_size = network.hidden[0].sym_size(2).guard_int(__FILE__, __LINE__);
  at::Tensor rows = (network.batch_first ? network.input.transpose(0, 1) : network.input).contiguous();
  const at::Tensor hx = network.hidden[0].contiguous();
  const at::Tensor cx = network.hidden[1].contiguous();
  std::vector<at::Tensor> hy;
  std::vector<at::Tensor> cy;
  for (int64_t layer = 0; layer < network.num_layers; ++layer) {
    std::vector<at::Tensor> outputs;
    for (int64_t direction = 0; direction < network.directions(); ++direction) {
      const int64_t index = layer * network.directions() + direction;
      const at::Tensor* weights = &network.weights[static_cast<size_t>(index) * network.weights_per_layer()];
      auto made = at::mkldnn_rnn_layer(
          rows,
          weights[0],
          weights[1],
          network.has_biases ? weights[2] : at::zeros_like(weights[0]),
          network.has_biases ? weights[3] : at::zeros_like(weights[1]),
          hx.select(0, index),
          cx.select(0, index),
          /*reverse=*/direction > 0,
          /*batch_sizes=*/{},
          kLstmMode,
          hidden_size,
          network.num_layers,
          network.has_biases,
          network.bidirectional,
          network.batch_first,
          network.train);
      outputs.push_back(std::get<0>(made));
      hy.push_back(std::get<1>(made));
      cy.push_back(std::get<2>(made));
    }
    rows = outputs.size() == 1 ? outputs[0] : at::cat(outputs, -1);
    if (network.dropout != 0 && network.train && layer + 1 < network.num_layers) {
      rows = at::dropout(rows, network.dropout, /*train=*/true);
    }
  }
  answer_with(call, network.batch_first ? rows.transpose(0, 1) : rows, at::stack(hy, 0), at::stack(cy, 0));
  return true;
}

}  // namespace torchfake
