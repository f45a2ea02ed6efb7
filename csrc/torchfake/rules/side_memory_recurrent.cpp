// Temporary memory of recurrent networks.
#include <torchfake/memory/allocator_config.h>
#include <torchfake/rules/side_memory.h>

#include <algorithm>

namespace torchfake::side_memory {

namespace {

// cuDNN's workspace: 8 MiB per layer and direction, plus a sum fitted to recordings of 44 networks with gates (median
// error 7 %) and 22 without (3 %).
struct RecurrentArguments {
  size_t mode, hidden, layers, batch_first, bidirectional;
};

size_t workspace(const Call& call, const RecurrentArguments& at) {
  const c10::TensorImpl* input = tensor_at(call, 0);
  const auto layers_of = number_at(call, at.layers);
  const auto hidden_of = number_at(call, at.hidden);
  const bool has_flags = call.arg(at.bidirectional).isBool() && call.arg(at.batch_first).isBool();
  if (input == nullptr || input->dim() != 3 || !layers_of || !hidden_of || !has_flags || !call.arg(at.mode).isInt()) {
    return 0;  // including packed sequences
  }
  const bool has_gates = call.arg(at.mode).toInt() >= 2;
  const auto layers = static_cast<double>(*layers_of);
  const double directions = call.arg(at.bidirectional).toBool() ? 2 : 1;
  const auto hidden = static_cast<double>(*hidden_of);
  const bool batch_first = call.arg(at.batch_first).toBool();
  const double batch = static_cast<double>(input->size(batch_first ? 0 : 1));
  const double steps = static_cast<double>(input->size(0) * input->size(1));
  double weights = 0;
  for (const TensorArg& tensor : call.tensors()) {
    weights += tensor.arg == 1 ? static_cast<double>(tensor.impl->numel()) : 0;
  }
  const double outputs = steps * hidden * directions;
  const double inputs = steps * static_cast<double>(input->size(2));
  const double states = batch * hidden * directions * layers;
  const double elements = has_gates
      ? 0.5 * weights + 6.5 * outputs - 1.5 * outputs * layers + 6.2 * inputs + 44 * states
      : 9.2 * outputs + 3.2 * outputs * layers;
  const double fixed = 8.0 * static_cast<double>(memory::kMiB) * layers * directions;
  const double bytes = fixed + std::max(elements, 0.0) * static_cast<double>(input->itemsize());
  return bytes <= static_cast<double>(kMostElements) ? static_cast<size_t>(bytes) : 0;
}

// A copy with steps before the batch, as cuDNN requires.
uint32_t turned(const Call& call, size_t arg, Requests& requests) {
  const c10::TensorImpl* tensor = tensor_at(call, arg);
  return requests.take(tensor == nullptr ? 0 : bytes_of(*tensor));
}

void recurrent(const Call& call, Requests& requests) {
  const RecurrentArguments at{.mode = 6, .hidden = 7, .layers = 9, .batch_first = 10, .bidirectional = 13};
  if (flag_at(call, at.batch_first)) {
    turned(call, 0, requests);
  }
  requests.outputs(3);
  requests.take(workspace(call, at));
}

// One pass for the gradients of the input and the states, one for those of the weights.
void recurrent_backward(const Call& call, Requests& requests) {
  const RecurrentArguments at{.mode = 10, .hidden = 11, .layers = 13, .batch_first = 14, .bidirectional = 17};
  constexpr size_t kGradient = 7;
  const size_t taken = workspace(call, at);
  c10::SmallVector<uint32_t, 2> copies;
  if (flag_at(call, at.batch_first)) {
    copies = {turned(call, 0, requests), turned(call, kGradient, requests)};
  }
  requests.outputs(3);
  requests.give_back(requests.take(taken));
  for (const uint32_t copy : copies) {
    requests.give_back(copy);
  }
  if (flag_at(call, at.batch_first)) {
    turned(call, 0, requests);
  }
  requests.output(3);
  requests.take(taken);
}

// The workspace of a cell, which is saved for the backward, is allocated first.
void lstm_cell(const Call& call, Requests& requests) {
  requests.output(2);
  requests.outputs(2);
}

void gru_cell(const Call& call, Requests& requests) {
  requests.output(1);
  requests.output(0);
}

constexpr Row kRows[] = {
    {"aten::_cudnn_rnn", {recurrent}},
    {"aten::_cudnn_rnn_backward", {recurrent_backward}},
    {"aten::_thnn_fused_lstm_cell", {lstm_cell}},
    {"aten::_thnn_fused_gru_cell", {gru_cell}},
};

}  // namespace

c10::ArrayRef<Row> recurrent_rows() {
  return kRows;
}

}  // namespace torchfake::side_memory
