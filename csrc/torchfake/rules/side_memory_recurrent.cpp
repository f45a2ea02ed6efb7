// Temporary memory of recurrent networks.
#include <torchfake/memory/allocator_config.h>
#include <torchfake/rules/cudnn_recurrent.h>
#include <torchfake/rules/side_memory.h>

#include <algorithm>

namespace torchfake::side_memory {

namespace {

// Note [Workspaces of recurrent networks]
//
// cuDNN takes one workspace for a whole network: 8 MiB for each layer and direction, a copy of all matrices, and the
// larger of what the forward pass and, in training, the backward pass need. Both are sums of activations (`rows` times a
// width) and states (`batch` times a width). The sums below follow from recordings of 8,000 networks, in whose widths and
// lengths they are linear; of the recorded workspaces 99.8 % are exact to the block.
//
// The algorithm is PyTorch's choice (by hidden size and dtype), except that bfloat16 has no persistent kernels. A
// network in one direction whose kernels are not persistent is computed in chunks of steps: gates for at most 256 steps
// at once, and the backward of several layers as a pipeline.
struct Network {
  Cudnn mode = Cudnn::kLstm;
  c10::ScalarType dtype = c10::kFloat;
  double rows = 0;  // of all steps
  double batch = 0;
  double steps = 0;
  double width = 0;  // of the input
  double hidden = 0;
  double projected = 0;  // the size of the projection, or 0
  double layers = 0;
  double directions = 1;
  double matrices = 0;  // elements of all weights without biases
  bool is_packed = false;
  bool drops = false;

  bool has_cells() const {
    return mode == Cudnn::kLstm;
  }
  bool has_gates() const {
    return mode >= Cudnn::kLstm;
  }
  double gates() const {
    return has_cells() ? 4 : has_gates() ? 3 : 1;
  }
  double output() const {
    return directions * (projected > 0 ? projected : hidden);
  }
  // Hidden states and cells of all layers.
  double states() const {
    return batch * layers * (output() + (has_cells() ? directions * hidden : 0));
  }
};

bool is_persistent(const Network& net, bool backward) {
  if (net.projected > 0 || net.is_packed || net.dtype == c10::kDouble || net.dtype == c10::kBFloat16) {
    return false;
  }
  const double small = net.has_gates() ? (backward ? 128 : 192) : (backward ? 256 : 384);
  if (net.hidden <= small) {
    return true;
  }
  const auto divides = [](int64_t n, double size) { return static_cast<int64_t>(size) % n == 0; };
  return net.dtype == c10::kHalf && net.mode != Cudnn::kGru && net.layers == 1 && net.directions == 1 &&
      net.hidden <= 1024 && divides(128, net.hidden) && divides(128, net.width) && divides(8, net.batch) &&
      net.batch <= 128 && (net.has_cells() || net.batch < 96 || net.hidden < 896);
}

double forward_elements(const Network& net, bool persistent, bool train) {
  constexpr double kMostSteps = 256;
  const double wide = net.directions * net.hidden;
  const bool one_way = net.directions == 1;
  const bool chunked = one_way && !persistent && net.rows == net.batch * net.steps;
  double elements = net.gates() * wide * (chunked ? std::min(net.rows, kMostSteps * net.batch) : net.rows);
  if (!one_way) {
    elements += 2 * wide * net.rows;
  }
  if (net.projected > 0) {
    elements += wide * net.rows;
  }
  if (persistent) {
    elements += 4 * net.gates() * net.hidden * net.rows;
  }
  if (train && net.drops && one_way) {
    elements += net.hidden * net.rows;
  }
  double buffers = one_way ? 0 : 4;
  if (persistent) {
    buffers += net.directions * (net.has_cells() ? 4 : 0) + (one_way ? 4 : 6);
  } else {
    buffers += net.directions * (net.has_cells() ? 6 : net.gates());
  }
  elements += buffers * net.batch * net.hidden * net.layers;
  if (!net.is_packed) {
    elements += net.rows * (net.width + net.output()) + (persistent ? 0 : 2 * net.states());
  }
  return elements;
}

// The number of steps of the buffer between two layers of the backward pipeline. Recorded up to 120 and from 200 steps,
// and for batches of 1, 2 to 8, 16, 20 to 64, and 128.
double pipelined_steps(const Network& net) {
  constexpr double kLong = 160;
  double chunk = 2;
  if (net.batch == 1) {
    chunk = 32;
  } else if (net.batch <= 8) {
    chunk = 16;
  } else if (net.batch <= 16 || net.steps >= kLong) {
    chunk = 8;
  } else if (net.batch <= 64) {
    chunk = 4;
  }
  return chunk * net.layers + std::max(chunk, 8.0);
}

double backward_elements(const Network& net, bool persistent) {
  const double wide = net.directions * net.hidden;
  const bool one_way = net.directions == 1;
  double elements = (one_way ? 1 : 4) * std::max(net.width, net.hidden) * net.rows;
  if (net.layers > 1 && one_way && !persistent) {
    elements += net.hidden * std::min(net.rows, net.batch * pipelined_steps(net));
  } else {
    elements += wide * net.rows * std::min(net.layers, 2.0);
  }
  if (net.projected > 0) {
    elements += wide * net.rows;
  }
  if (persistent) {
    elements += (net.has_cells() ? 12 : net.has_gates() ? 14 : 9) * net.hidden * net.rows;
  }
  const double buffers =
      net.directions * (net.has_cells() ? 3 : 1) + (one_way ? 0 : 4) + (persistent && one_way ? 1 : 0);
  elements += buffers * net.batch * net.hidden * net.layers;
  if (!net.is_packed) {
    elements += 2 * net.rows * (net.width + net.output()) + 4 * net.states();
  }
  return elements;
}

size_t workspace(const Network& net, bool train, bool backward) {
  constexpr double kHeader = 256;
  const bool persistent = is_persistent(net, backward);
  double elements = forward_elements(net, persistent, train);
  if (train) {
    elements = std::max(elements, backward_elements(net, persistent));
  }
  const double fixed = 8.0 * static_cast<double>(memory::kMiB) * net.layers * net.directions + kHeader;
  const double lengths = net.is_packed ? 0 : 2 * static_cast<double>(div_up(static_cast<int64_t>(net.batch), 4) * 16);
  const double itemsize = static_cast<double>(c10::elementSize(net.dtype));
  const double bytes = fixed + lengths + (elements + net.matrices) * itemsize;
  return bytes <= static_cast<double>(kMostElements) ? static_cast<size_t>(bytes) : 0;
}

// The arguments of a pass, which come in the same order from `mode` on.
struct Arguments {
  size_t mode;

  enum Offset : size_t { kHidden = 1, kProjected, kLayers, kBatchFirst, kDropout, kTrain, kBidirectional, kBatchSizes };
  size_t operator[](Offset offset) const {
    return mode + offset;
  }
};

std::optional<Network> network_of(const Call& call, const Arguments& at) {
  using enum Arguments::Offset;
  const c10::TensorImpl* input = tensor_at(call, 0);
  const auto layers = number_at(call, at[kLayers]);
  const auto hidden = number_at(call, at[kHidden]);
  if (input == nullptr || !layers || !hidden || !call.arg(at.mode).isInt() || !call.arg(at[kBatchSizes]).isIntList()) {
    return std::nullopt;
  }
  const std::vector<int64_t> batch_sizes = call.arg(at[kBatchSizes]).toIntVector();
  Network net;
  net.is_packed = !batch_sizes.empty();
  if (input->dim() != (net.is_packed ? 2 : 3) || input->numel() == 0) {
    return std::nullopt;
  }
  const bool batch_first = flag_at(call, at[kBatchFirst]);
  net.mode = static_cast<Cudnn>(call.arg(at.mode).toInt());
  net.dtype = c10::typeMetaToScalarType(input->dtype());
  net.rows = static_cast<double>(net.is_packed ? input->size(0) : input->size(0) * input->size(1));
  net.batch = static_cast<double>(net.is_packed ? batch_sizes.front() : input->size(batch_first ? 0 : 1));
  net.steps = net.is_packed ? static_cast<double>(batch_sizes.size()) : net.rows / net.batch;
  net.width = static_cast<double>(input->size(input->dim() - 1));
  net.hidden = static_cast<double>(*hidden);
  net.projected = static_cast<double>(number_at(call, at[kProjected]).value_or(0));
  net.layers = static_cast<double>(*layers);
  net.directions = flag_at(call, at[kBidirectional]) ? 2 : 1;
  net.drops = *layers > 1 && call.arg(at[kDropout]).isDouble() && call.arg(at[kDropout]).toDouble() > 0;
  for (const TensorArg& tensor : call.tensors()) {
    net.matrices += tensor.arg == 1 && tensor.impl->dim() == 2 ? static_cast<double>(tensor.impl->numel()) : 0;
  }
  return net;
}

// Copies a tensor if it is not contiguous with steps before the batch, as cuDNN requires.
uint32_t steps_first(const Call& call, size_t arg, bool batch_first, Requests& requests) {
  const c10::TensorImpl* tensor = tensor_at(call, arg);
  if (tensor == nullptr || tensor->dim() < 2) {
    return requests.take(0);
  }
  int64_t stride = 1;
  for (int64_t i = tensor->dim() - 1; i >= 0; --i) {
    const int64_t dim = batch_first && i < 2 ? 1 - i : i;
    if (tensor->size(dim) != 1 && tensor->stride(dim) != stride) {
      return requests.take(bytes_of(*tensor));
    }
    stride *= tensor->size(dim);
  }
  return requests.take(0);
}

void recurrent(const Call& call, Requests& requests) {
  using enum Arguments::Offset;
  constexpr Arguments kAt{6};
  const auto net = network_of(call, kAt);
  if (!net) {
    return;
  }
  steps_first(call, 0, !net->is_packed && flag_at(call, kAt[kBatchFirst]), requests);
  requests.outputs(3);
  if (call.arg(3).isNone()) {
    requests.output(4);  // the packed weights
  }
  requests.take(workspace(*net, flag_at(call, kAt[kTrain]), /*backward=*/false));
}

// An argument of zeros where the caller has no gradient.
void zeros_without(const Call& call, size_t gradient, size_t like, Requests& requests) {
  const c10::TensorImpl* tensor = tensor_at(call, like);
  if (tensor != nullptr && tensor_at(call, gradient) == nullptr) {
    requests.take(bytes_of(*tensor));
  }
}

// One pass for the gradients of the input and the states, one for those of the weights.
void recurrent_backward(const Call& call, Requests& requests) {
  using enum Arguments::Offset;
  constexpr Arguments kAt{10};
  enum Argument : size_t {
    kInput,
    kWeightBuffer = 3,
    kStates,
    kCells,
    kOutput,
    kOfOutput,
    kOfStates,
    kOfCells,
    kMask = 21
  };
  const auto net = network_of(call, kAt);
  const auto is_given = [&](size_t arg) { return tensor_at(call, arg) != nullptr; };
  if (!net || !(is_given(kOfOutput) || is_given(kOfStates) || is_given(kOfCells))) {
    return;
  }
  const bool batch_first = !net->is_packed && flag_at(call, kAt[kBatchFirst]);
  const size_t taken = workspace(*net, /*train=*/true, /*backward=*/true);
  zeros_without(call, kOfOutput, kOutput, requests);
  zeros_without(call, kOfStates, kStates, requests);
  zeros_without(call, kOfCells, kCells, requests);
  const uint32_t input = steps_first(call, kInput, batch_first, requests);
  const uint32_t gradient = steps_first(call, kOfOutput, batch_first, requests);
  requests.outputs(3);
  requests.give_back(requests.take(taken));
  requests.give_back(gradient);
  requests.give_back(input);
  const c10::TensorImpl* buffer = tensor_at(call, kWeightBuffer);
  if (!mask_at(call, kMask, 3) || buffer == nullptr) {
    return;
  }
  steps_first(call, kInput, batch_first, requests);
  bool has_biases = false;
  for (const TensorArg& tensor : call.tensors()) {
    has_biases = has_biases || (tensor.arg == 1 && tensor.impl->dim() == 1);
  }
  if (has_biases) {
    requests.output(3);
  } else {
    requests.take(bytes_of(*buffer));  // the gradients are copied from here
  }
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
