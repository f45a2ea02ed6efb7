// Recurrent networks as cuDNN runs them. Layouts and sizes as observed on an H200.
#include <torchfake/rules/cudnn_recurrent.h>

#include <ATen/EmptyTensor.h>
#include <ATen/ops/_cudnn_rnn.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/strides.h>

#include <torchfake/core/errors.h>
#include <torchfake/core/fake_storage.h>
#include <torchfake/core/kernel_environment.h>
#include <torchfake/memory/observer_pair.h>
#include <torchfake/rules/composites.h>
#include <torchfake/rules/results.h>
#include <torchfake/rules/rules.h>
#include <torchfake/rules/side_memory.h>

#include <algorithm>
#include <limits>
#include <numeric>

namespace torchfake {

namespace {

using FiveTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

int64_t gates_of(Cudnn mode) {
  return mode == Cudnn::kLstm ? 4 : mode == Cudnn::kGru ? 3 : 1;
}

// The position of each weight in the buffer: the matrices of all layers first, then their biases.
struct WeightLayout {
  std::vector<int64_t> offsets;
  int64_t numel = 0;
};

WeightLayout layout_of(at::TensorList weights, Cudnn mode, int64_t hidden_size, int64_t layers) {
  WeightLayout layout;
  layout.offsets.resize(weights.size());
  const auto place = [&](int64_t dim) {
    for (size_t i = 0; i < weights.size(); ++i) {
      if (weights[i].dim() == dim) {
        layout.offsets[i] = layout.numel;
        layout.numel += weights[i].numel();
      }
    }
  };
  place(2);
  const int64_t matrices = layout.numel;
  place(1);
  // Two biases are reserved for each layer, even if the network has none.
  layout.numel = matrices + layers * 2 * gates_of(mode) * hidden_size;
  return layout;
}

// The bytes that the forward saves for the backward: gates, states and projections, activations between layers, and a bit
// for each element that dropout keeps. For packed input the bits are those of the padded batch.
struct Reserve {
  Cudnn mode;
  int64_t rows;
  int64_t padded_rows;
  int64_t hidden_size;
  int64_t proj_size;
  int64_t num_layers;
  int64_t directions;
  int64_t itemsize;
  bool drops;

  int64_t bytes() const {
    constexpr int64_t kHeader = 256;
    const auto aligned = [](int64_t bytes) { return (bytes + 31) / 32 * 32; };
    const int64_t kept = mode == Cudnn::kLstm ? 5 : mode == Cudnn::kGru ? 6 : 1;
    const int64_t layer = rows * hidden_size * directions * itemsize;
    int64_t bytes = kHeader + aligned(kept * num_layers * layer) + aligned((num_layers - 1) * layer);
    if (proj_size > 0) {
      bytes += aligned(num_layers * layer) + aligned(num_layers * rows * proj_size * directions * itemsize);
    }
    if (drops) {
      const int64_t outputs = padded_rows * (proj_size > 0 ? proj_size : hidden_size) * directions;
      bytes += (num_layers - 1) * directions * aligned((outputs + 7) / 8);
    }
    return bytes;
  }
};

// A padded batch is computed step by step; with batch_first the result is a transposed view.
at::Tensor steps_first(std::vector<int64_t> sizes, c10::ScalarType dtype, bool batch_first) {
  if (!batch_first) {
    return empty(sizes, dtype);
  }
  std::swap(sizes[0], sizes[1]);
  return empty(sizes, dtype).transpose(0, 1);
}

// Steps, batch and features; for packed input, steps and batch are one dimension.
void check_input(const at::Tensor& input, bool packed) {
  TORCH_CHECK(
      input.dim() == (packed ? 2 : 3),
      "input must have ",
      packed ? 2 : 3,
      " dimensions, got ",
      input.dim(),
      " (while checking arguments for cudnn_rnn)");
}

FiveTensors cudnn_rnn(
    const at::Tensor& input,
    at::TensorList weight,
    int64_t /*weight_stride0*/,
    const OptTensor& weight_buf,
    const at::Tensor& hx,
    const OptTensor& cx,
    int64_t mode_number,
    int64_t hidden_size,
    int64_t proj_size,
    int64_t num_layers,
    bool batch_first,
    double dropout,
    bool train,
    bool bidirectional,
    c10::IntArrayRef batch_sizes,
    const OptTensor& /*dropout_state*/) {
  const auto mode = static_cast<Cudnn>(mode_number);
  const c10::ScalarType dtype = input.scalar_type();
  const bool packed = !batch_sizes.empty();
  const int64_t directions = bidirectional ? 2 : 1;
  const int64_t layers = num_layers * directions;
  const int64_t batch = packed ? batch_sizes.front() : input.size(batch_first ? 0 : 1);
  const int64_t out_size = proj_size != 0 ? proj_size : hidden_size;
  const bool has_cells = cx && cx->defined();
  check_input(input, packed);
  TORCH_CHECK(hx.is_contiguous(), "rnn: hx is not contiguous");
  TORCH_CHECK(!has_cells || cx->is_contiguous(), "rnn: cx is not contiguous");
  std::vector<int64_t> sizes = input.sizes().vec();
  const int64_t rows = packed ? sizes[0] : sizes[0] * sizes[1];
  sizes.back() = out_size * directions;
  const Reserve reserve{
      .mode = mode,
      .rows = rows,
      .padded_rows = packed ? batch * static_cast<int64_t>(batch_sizes.size()) : rows,
      .hidden_size = hidden_size,
      .proj_size = proj_size,
      .num_layers = num_layers,
      .directions = directions,
      .itemsize = static_cast<int64_t>(input.itemsize()),
      .drops = dropout > 0};
  return {
      steps_first(std::move(sizes), dtype, batch_first && !packed),
      empty({layers, batch, out_size}, dtype),
      has_cells ? empty({layers, batch, hidden_size}, dtype) : empty({0}, dtype),
      empty({train ? reserve.bytes() : 0}, c10::kByte),
      weight_buf && weight_buf->defined() ? *weight_buf
                                          : empty({layout_of(weight, mode, hidden_size, layers).numel}, dtype)};
}

// Views of one buffer with the layout of the weights; without biases, copies of its contents.
std::vector<at::Tensor> gradients_of(
    at::TensorList weights,
    const at::Tensor& weight_buf,
    Cudnn mode,
    int64_t hidden_size,
    int64_t layers) {
  const at::Tensor buffer = contiguous_like(weight_buf);
  const WeightLayout layout = layout_of(weights, mode, hidden_size, layers);
  const bool has_biases =
      std::any_of(weights.begin(), weights.end(), [](const at::Tensor& weight) { return weight.dim() == 1; });
  std::vector<at::Tensor> gradients;
  gradients.reserve(weights.size());
  for (size_t i = 0; i < weights.size(); ++i) {
    gradients.push_back(
        has_biases ? buffer.as_strided(weights[i].sizes(), weights[i].strides(), layout.offsets[i])
                   : contiguous_like(weights[i]));
  }
  return gradients;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, std::vector<at::Tensor>> cudnn_rnn_backward(
    const at::Tensor& input,
    at::TensorList weight,
    int64_t /*weight_stride0*/,
    const at::Tensor& weight_buf,
    const at::Tensor& hx,
    const OptTensor& cx,
    const at::Tensor& /*output*/,
    const OptTensor& grad_output,
    const OptTensor& grad_hy,
    const OptTensor& grad_cy,
    int64_t mode,
    int64_t hidden_size,
    int64_t /*proj_size*/,
    int64_t num_layers,
    bool batch_first,
    double /*dropout*/,
    bool train,
    bool bidirectional,
    c10::IntArrayRef batch_sizes,
    const OptTensor& /*dropout_state*/,
    const at::Tensor& /*reserve*/,
    std::array<bool, 4> output_mask) {
  if (!value(grad_output).defined() && !value(grad_hy).defined() && !value(grad_cy).defined()) {
    return {at::Tensor(), at::Tensor(), at::Tensor(), std::vector<at::Tensor>(weight.size())};
  }
  TORCH_CHECK(train, "cudnn RNN backward can only be called in training mode");
  check_input(input, !batch_sizes.empty());
  at::Tensor grad_cells = cx && cx->defined() ? contiguous_like(*cx) : at::Tensor();
  std::vector<at::Tensor> gradients;
  if (output_mask[3]) {
    gradients =
        gradients_of(weight, weight_buf, static_cast<Cudnn>(mode), hidden_size, num_layers * (bidirectional ? 2 : 1));
  }
  return {
      steps_first(input.sizes().vec(), input.scalar_type(), batch_first && batch_sizes.empty()),
      contiguous_like(hx),
      std::move(grad_cells),
      std::move(gradients)};
}

bool cudnn_takes(const at::Tensor& input, const ModePtr* mode) {
  const c10::ScalarType dtype = input.scalar_type();
  const bool has_bfloat16 = mode == nullptr || !*mode || KernelEnvironment::cuda_capability(**mode) >= 80;
  return input.is_cuda() && input.numel() > 0 && KernelEnvironment::enabled(KernelEnvironment::kCudnn) &&
      (dtype == c10::kFloat || dtype == c10::kDouble || dtype == c10::kHalf ||
       (dtype == c10::kBFloat16 && has_bfloat16));
}

void check_dtypes(const at::Tensor& input, at::TensorList hidden, at::TensorList weights) {
  for (const at::Tensor& state : hidden) {
    TORCH_CHECK(
        state.scalar_type() == input.scalar_type(),
        "Input and hidden tensors are not the same dtype, found input tensor with ",
        input.dtype(),
        " and hidden tensor with ",
        state.dtype());
  }
  for (const at::Tensor& weight : weights) {
    TORCH_CHECK(
        weight.scalar_type() == input.scalar_type(),
        "Input and parameter tensors are not the same dtype, found input tensor with ",
        input.dtype(),
        " and parameter tensor with ",
        weight.dtype());
  }
}

// The buffer that holds the weights in cuDNN's layout; undefined if they are laid out differently.
at::Tensor buffer_of(at::TensorList weights, const WeightLayout& layout) {
  const c10::Storage& storage = weights[0].storage();
  for (size_t i = 0; i < weights.size(); ++i) {
    if (!weights[i].storage().is_alias_of(storage) || weights[i].storage_offset() != layout.offsets[i]) {
      return at::Tensor();
    }
  }
  if (storage.nbytes() < static_cast<size_t>(layout.numel) * weights[0].itemsize()) {
    return at::Tensor();
  }
  const at::NoGradGuard no_grad;
  return weights[0].detach().as_strided({layout.numel}, {1}, 0);
}

bool may_be_cast(const at::Tensor& tensor) {
  const c10::ScalarType dtype = tensor.scalar_type();
  return dtype == c10::kFloat || dtype == c10::kHalf || dtype == c10::kBFloat16;
}

// Copies the weights to one buffer in cuDNN's layout, of which they then are parts.
void cast_weights(std::vector<at::Tensor>& weights, const WeightLayout& layout, c10::ScalarType dtype) {
  const at::TensorOptions options = weights[0].options().dtype(dtype).requires_grad(false);
  const at::Tensor buffer = at::zeros({layout.numel}, options);
  for (size_t i = 0; i < weights.size(); ++i) {
    // Not a view in the sense of autograd, so that the gradient of a copy is that of the weight alone.
    at::Tensor part = at::empty({0}, options);
    part.set_(buffer.storage(), layout.offsets[i], weights[i].sizes(), c10::contiguous_strides(weights[i].sizes()));
    part.copy_(weights[i]);
    weights[i] = std::move(part);
  }
}

// cuDNN's own autocast casts all of its arguments. It is absent from a PyTorch without CUDA, and in one with CUDA it calls
// cuDNN for the layout of the weights, so the call is made without it.
void cast_for_autocast(
    at::Tensor& input,
    std::vector<at::Tensor>& hidden,
    std::vector<at::Tensor>& weights,
    const WeightLayout& layout) {
  if (!KernelEnvironment::autocast_enabled(c10::kCUDA)) {
    return;
  }
  const c10::ScalarType dtype = KernelEnvironment::autocast_dtype(c10::kCUDA);
  const bool are_weights_cast = std::all_of(weights.begin(), weights.end(), may_be_cast) &&
      std::any_of(weights.begin(), weights.end(), [&](const at::Tensor& w) { return w.scalar_type() != dtype; });
  if (are_weights_cast) {
    cast_weights(weights, layout, dtype);
  }
  const auto cast = [&](at::Tensor& tensor) {
    if (may_be_cast(tensor)) {
      tensor = tensor.to(dtype);
    }
  };
  std::for_each(hidden.begin(), hidden.end(), cast);
  cast(input);
}

// The generators of dropout, one for each resident thread of the card, which PyTorch allocates once and keeps.
void keep_dropout_state(const at::Tensor& input) {
  constexpr int64_t kGenerator = 24;
  c10::StorageImpl* storage = storage_of(*input.unsafeGetTensorImpl());
  StorageObserver* observer = storage == nullptr ? nullptr : observation_of(storage).observer;
  if (memory::MemoryModel* model = memory::model_among(observer)) {
    const int64_t threads = side_memory::kMultiprocessors * side_memory::kThreadsPerMultiprocessor;
    model->keep_buffer(memory::Workspace::kDropoutState, input.device(), static_cast<size_t>(kGenerator * threads));
  }
}

}  // namespace

template <Cudnn kMode, bool kPacked>
bool cudnn_recurrent(const Call& call) {
  at::Tensor input = call.arg(0).toTensor();
  if (!cudnn_takes(input, call.find_mode())) {
    return false;
  }
  constexpr size_t kFirst = kPacked ? 2 : 1;  // input or data, batch sizes, hidden states, weights, ...
  std::vector<at::Tensor> hidden =
      kMode == Cudnn::kLstm ? call.arg(kFirst).toTensorVector() : std::vector<at::Tensor>{call.arg(kFirst).toTensor()};
  std::vector<at::Tensor> weights = call.arg(kFirst + 1).toTensorVector();
  const int64_t num_layers = call.arg(kFirst + 3).toInt();
  if (hidden.size() != (kMode == Cudnn::kLstm ? 2 : 1) || weights.empty() || num_layers < 1) {
    return false;  // PyTorch raises its own error for this
  }
  const int64_t out_size = hidden[0].size(2);
  const int64_t hidden_size = kMode == Cudnn::kLstm ? hidden[1].size(2) : out_size;
  const int64_t proj_size = hidden_size == out_size ? 0 : out_size;
  const bool bidirectional = call.arg(kFirst + 6).toBool();
  const int64_t layers = num_layers * (bidirectional ? 2 : 1);
  const WeightLayout layout = layout_of(weights, kMode, hidden_size, layers);
  cast_for_autocast(input, hidden, weights, layout);
  check_dtypes(input, hidden, weights);
  const double dropout = call.arg(kFirst + 4).toDouble();
  const bool train = call.arg(kFirst + 5).toBool();
  const bool batch_first = !kPacked && call.arg(kFirst + 7).toBool();
  TORCH_CHECK(
      input.size(-1) == weights[0].size(1),
      "input.size(-1) must be equal to input_size. Expected ",
      weights[0].size(1),
      ", got ",
      input.size(-1));
  const at::Tensor buffer = buffer_of(weights, layout);
  if (train && dropout > 0) {
    keep_dropout_state(input);
  }
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  auto [output, hy, cy, reserve, new_buffer] = at::_cudnn_rnn(
      input,
      weights,
      static_cast<int64_t>(weights.size()) / layers,
      buffer.defined() ? OptTensor(buffer) : std::nullopt,
      hidden[0],
      kMode == Cudnn::kLstm ? OptTensor(hidden[1]) : std::nullopt,
      static_cast<int64_t>(kMode),
      hidden_size,
      proj_size,
      num_layers,
      batch_first,
      dropout,
      train,
      bidirectional,
      kPacked ? known_values_of(call, 1) : std::vector<int64_t>(),
      /*dropout_state=*/std::nullopt);
  if constexpr (kMode == Cudnn::kLstm) {
    answer_with(call, std::move(output), std::move(hy), std::move(cy));
  } else {
    answer_with(call, std::move(output), std::move(hy));
  }
  return true;
}

template bool cudnn_recurrent<Cudnn::kLstm, false>(const Call&);
template bool cudnn_recurrent<Cudnn::kLstm, true>(const Call&);
template bool cudnn_recurrent<Cudnn::kGru, false>(const Call&);
template bool cudnn_recurrent<Cudnn::kGru, true>(const Call&);
template bool cudnn_recurrent<Cudnn::kRnnTanh, false>(const Call&);
template bool cudnn_recurrent<Cudnn::kRnnTanh, true>(const Call&);
template bool cudnn_recurrent<Cudnn::kRnnRelu, false>(const Call&);
template bool cudnn_recurrent<Cudnn::kRnnRelu, true>(const Call&);

void flatten_weights(at::TensorList weights, Cudnn mode, int64_t hidden_size, int64_t layers) {
  if (weights.empty()) {
    return;
  }
  const at::NoGradGuard no_grad;
  const WeightLayout layout = layout_of(weights, mode, hidden_size, layers);
  if (buffer_of(weights, layout).defined()) {
    return;
  }
  const at::Tensor buffer = at::empty({layout.numel}, weights[0].options());
  for (size_t i = 0; i < weights.size(); ++i) {
    const at::Tensor& weight = weights[i];
    weight.set_(buffer.storage(), layout.offsets[i], weight.sizes(), weight.strides());
  }
}

KernelList cudnn_recurrent_kernels() {
  namespace ops = at::_ops;
  return {
      kernel<ops::_cudnn_rnn, &cudnn_rnn>(),
      kernel<ops::_cudnn_rnn_backward, &cudnn_rnn_backward>(),
  };
}

}  // namespace torchfake
