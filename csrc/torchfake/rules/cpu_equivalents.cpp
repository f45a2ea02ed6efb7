// CPU equivalents of kernels that only a GPU has, to compute known values.
#include <torchfake/rules/cpu_equivalents.h>

#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/grid_sampler_2d.h>
#include <ATen/ops/grid_sampler_2d_backward.h>
#include <ATen/ops/gru.h>
#include <ATen/ops/lstm.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rnn_relu.h>
#include <ATen/ops/rnn_tanh.h>
#include <ATen/ops/tensor.h>

#include <torchfake/rules/cudnn_recurrent.h>
#include <torchfake/rules/forms.h>
#include <torchfake/rules/results.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <unordered_map>

namespace torchfake {

namespace {

using OptTensor = std::optional<at::Tensor>;
using TwoTensors = std::tuple<at::Tensor, at::Tensor>;
using ThreeTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using FourTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
using FiveTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

at::Tensor cast(const at::Tensor& tensor, c10::ScalarType dtype) {
  return tensor.defined() ? tensor.to(dtype) : tensor;
}

// ---- Attention --------------------------------------------------------------------------------------------------

at::Tensor attend(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    double dropout_p,
    bool is_causal,
    std::optional<double> scale,
    const at::Tensor& bias) {
  // The GPU accumulates in single precision. See also is_half_precision_product.
  if (c10::isReducedFloatingType(query.scalar_type())) {
    const bool is_mask = bias.defined() && bias.scalar_type() == c10::kBool;
    const at::Tensor output = attend(
        cast(query, c10::kFloat),
        cast(key, c10::kFloat),
        cast(value, c10::kFloat),
        dropout_p,
        is_causal,
        scale,
        is_mask ? bias : cast(bias, c10::kFloat));
    return output.to(query.scalar_type());
  }
  const OptTensor mask = bias.defined() ? OptTensor(bias) : std::nullopt;
  const bool shares_heads = query.size(-3) != key.size(-3);
  // Prefer a kernel that does not hold all scores at once.
  if (dropout_p == 0 && !shares_heads && query.dim() == 4 && query.size(-1) == value.size(-1) && query.numel() > 0 &&
      key.numel() > 0) {
    return std::get<0>(
        at::_scaled_dot_product_flash_attention_for_cpu(query, key, value, dropout_p, is_causal, mask, scale));
  }
  return std::get<0>(at::_scaled_dot_product_attention_math(
      query, key, value, mask, dropout_p, is_causal, /*dropout_mask=*/{}, scale, shares_heads));
}

// Repeats the heads of keys or values to match those of the queries.
at::Tensor spread_heads(const at::Tensor& tensor, const at::Tensor& query) {
  const at::Tensor exact = tensor.to(c10::kDouble);
  const int64_t times = query.size(-3) / tensor.size(-3);
  return times == 1 ? exact : exact.repeat_interleave(times, /*dim=*/-3);
}

at::Tensor gather_heads(const at::Tensor& gradient, const at::Tensor& tensor) {
  const int64_t heads = tensor.size(-3);
  const at::Tensor grouped = gradient.unflatten(-3, {heads, gradient.size(-3) / heads}).sum(-3);
  return grouped.to(tensor.scalar_type());
}

// Uses only queries, keys and values. With dropout, the dropped elements are unknown, and so are the gradients.
FourTensors attend_backward(
    const at::Tensor& gradient,
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    double dropout_p,
    bool is_causal,
    std::optional<double> scale,
    const at::Tensor& bias = {}) {
  const bool is_empty = query.numel() == 0 || key.numel() == 0 || value.numel() == 0;
  if (dropout_p > 0 || is_empty || (bias.defined() && !bias.is_floating_point())) {
    return {};
  }
  const double factor = scale.value_or(1 / std::sqrt(static_cast<double>(query.size(-1))));
  const at::Tensor queries = query.to(c10::kDouble);
  const at::Tensor keys = spread_heads(key, query);
  const at::Tensor values = spread_heads(value, query);
  at::Tensor scores = queries.matmul(keys.transpose(-2, -1)).mul(factor);
  if (bias.defined()) {
    scores = scores.add(bias);
  }
  if (is_causal) {
    const at::Tensor seen = at::ones({scores.size(-2), scores.size(-1)}, scores.options().dtype(c10::kBool)).tril();
    scores = scores.masked_fill(seen.logical_not(), -std::numeric_limits<double>::infinity());
  }
  const at::Tensor weights = scores.softmax(-1);
  const at::Tensor wanted = gradient.to(c10::kDouble);
  const at::Tensor of_weights = wanted.matmul(values.transpose(-2, -1));
  const at::Tensor of_scores = weights.mul(of_weights.sub(of_weights.mul(weights).sum(-1, /*keepdim=*/true)));
  at::Tensor of_bias;
  if (bias.defined()) {
    of_bias = of_scores.sum_to_size(bias.sizes()).to(bias.scalar_type());
  }
  return {
      of_scores.matmul(keys).mul(factor).to(query.scalar_type()),
      gather_heads(of_scores.transpose(-2, -1).matmul(queries).mul(factor), key),
      gather_heads(weights.transpose(-2, -1).matmul(wanted), value),
      of_bias};
}

// The results of an operator, as far as the CPU computes them.
template <typename Results>
Results results_of(const at::Tensor& first) {
  Results all{};
  std::get<0>(all) = first;
  return all;
}
template <typename Results, typename... Tensors>
Results results_of(const std::tuple<Tensors...>& made) {
  Results all{};
  const auto take = [&]<size_t... kIndices>(std::index_sequence<kIndices...> /*shared*/) {
    ((std::get<kIndices>(all) = std::get<kIndices>(made)), ...);
  };
  take(std::make_index_sequence<std::min(std::tuple_size_v<Results>, sizeof...(Tensors))>());
  return all;
}

template <typename Signature, auto kFunction, size_t... kPlaces>
struct ChosenArguments;

template <typename Results, typename... Args, auto kFunction, size_t... kPlaces>
struct ChosenArguments<Results(Args...), kFunction, kPlaces...> {
  static Results call(Args... args) {
    const auto all = std::forward_as_tuple(args...);
    return results_of<Results>(kFunction(std::get<kPlaces>(all)...));
  }
};

// The kernel of an operator that calls a function with the arguments at the given positions.
template <typename Op, auto kFunction, size_t... kPlaces>
NativeKernel chosen() {
  using Signature = typename c10::fn_remove_symint<typename Op::schema>::type;
  return native_kernel<Signature, &ChosenArguments<Signature, kFunction, kPlaces...>::call>(name_of<Op>().c_str());
}

// Without a bias, with a bias, and with an optional bias.
constexpr auto kAttend = [](const auto&... args) { return attend(args..., at::Tensor()); };
constexpr auto kAttendBiased = [](const at::Tensor& query,
                                  const at::Tensor& key,
                                  const at::Tensor& value,
                                  const OptTensor& bias,
                                  const auto&... args) {
  return attend(query, key, value, args..., torchfake::value(bias));
};
constexpr auto kAttendBackward = [](const auto&... args) { return attend_backward(args...); };

// ---- Normalisation and sampling ---------------------------------------------------------------------------------

constexpr auto kBatchNorm = [](const auto&... args) { return at::native_batch_norm(args...); };

TwoTensors rms_norm_backward(
    const at::Tensor& gradient,
    const at::Tensor& input,
    c10::IntArrayRef normalized_shape,
    const at::Tensor& scale,
    const OptTensor& weight) {
  std::vector<int64_t> inner(normalized_shape.size());
  std::iota(inner.begin(), inner.end(), input.dim() - static_cast<int64_t>(inner.size()));
  const at::Tensor factor = value(weight);
  const at::Tensor wanted = gradient.to(scale.scalar_type());
  const at::Tensor normal = input.to(scale.scalar_type()).mul(scale);
  const at::Tensor weighted = factor.defined() ? wanted.mul(factor) : wanted;
  const at::Tensor along = weighted.mul(normal).mean(inner, /*keepdim=*/true);
  at::Tensor of_weight;
  if (factor.defined()) {
    of_weight = wanted.mul(normal).sum_to_size(factor.sizes()).to(factor.scalar_type());
  }
  return {weighted.sub(normal.mul(along)).mul(scale).to(input.scalar_type()), of_weight};
}

c10::ScalarType dtype_of(const OptTensor& tensor, const at::Tensor& otherwise) {
  const at::Tensor present = value(tensor);
  return present.defined() ? present.scalar_type() : otherwise.scalar_type();
}

// A GPU keeps the statistics of half-precision inputs in single precision; the CPU takes everything in one dtype. These
// functions convert the arguments to the dtype of the statistics, and the gradients back.
ThreeTensors in_precision_of(const at::Tensor& input, const OptTensor& weight, const ThreeTensors& gradients) {
  const auto& [of_input, of_weight, of_bias] = gradients;
  const c10::ScalarType dtype = dtype_of(weight, input);
  return {cast(of_input, input.scalar_type()), cast(of_weight, dtype), cast(of_bias, dtype)};
}

ThreeTensors layer_norm_backward(
    const at::Tensor& gradient,
    const at::Tensor& input,
    c10::IntArrayRef normalized_shape,
    const at::Tensor& mean,
    const at::Tensor& scale,
    const OptTensor& weight,
    const OptTensor& bias,
    std::array<bool, 3> wanted) {
  const c10::ScalarType dtype = mean.scalar_type();
  const ThreeTensors gradients = at::native_layer_norm_backward(
      cast(gradient, dtype),
      cast(input, dtype),
      normalized_shape,
      mean,
      scale,
      cast(value(weight), dtype),
      cast(value(bias), dtype),
      wanted);
  return in_precision_of(input, weight, gradients);
}

ThreeTensors batch_norm_backward(
    const at::Tensor& gradient,
    const at::Tensor& input,
    const OptTensor& weight,
    const OptTensor& running_mean,
    const OptTensor& running_var,
    const OptTensor& mean,
    const OptTensor& scale,
    bool train,
    double epsilon,
    std::array<bool, 3> wanted) {
  const at::Tensor statistics = value(mean);
  const bool has_statistics = statistics.defined() && statistics.numel() > 0;
  const c10::ScalarType dtype = has_statistics ? statistics.scalar_type() : input.scalar_type();
  const ThreeTensors gradients = at::native_batch_norm_backward(
      cast(gradient, dtype),
      cast(input, dtype),
      cast(value(weight), dtype),
      cast(value(running_mean), dtype),
      cast(value(running_var), dtype),
      cast(value(mean), dtype),
      cast(value(scale), dtype),
      train,
      epsilon,
      wanted);
  return in_precision_of(input, weight, gradients);
}

ThreeTensors cudnn_batch_norm_backward(
    const at::Tensor& input,
    const at::Tensor& gradient,
    const at::Tensor& weight,
    const OptTensor& running_mean,
    const OptTensor& running_var,
    const OptTensor& mean,
    const OptTensor& scale,
    double epsilon) {
  return batch_norm_backward(
      gradient, input, weight, running_mean, running_var, mean, scale, /*train=*/true, epsilon, {true, true, true});
}

// A GPU returns no buffer.
at::Tensor log_sigmoid_backward(const at::Tensor& gradient, const at::Tensor& input) {
  return gradient.mul(input.neg().sigmoid());
}

// cuDNN samples bilinearly with zero padding and aligned corners.
at::Tensor grid_sampler(const at::Tensor& input, const at::Tensor& grid) {
  return at::grid_sampler_2d(input, grid, /*interpolation_mode=*/0, /*padding_mode=*/0, /*align_corners=*/true);
}

TwoTensors grid_sampler_backward(const at::Tensor& input, const at::Tensor& grid, const at::Tensor& gradient) {
  return at::grid_sampler_2d_backward(
      gradient, input, grid, /*interpolation_mode=*/0, /*padding_mode=*/0, /*align_corners=*/true, {true, true});
}

// ---- Recurrent networks -----------------------------------------------------------------------------------------

at::Tensor biased(const at::Tensor& gates, const OptTensor& bias) {
  const at::Tensor added = value(bias);
  return added.defined() ? gates.add(added) : gates;
}

ThreeTensors lstm_cell(
    const at::Tensor& input_gates,
    const at::Tensor& hidden_gates,
    const at::Tensor& state,
    const OptTensor& input_bias,
    const OptTensor& hidden_bias) {
  const auto gates = biased(input_gates, input_bias).add(biased(hidden_gates, hidden_bias)).chunk(4, 1);
  const at::Tensor kept = gates[1].sigmoid().mul(state);
  const at::Tensor cell = kept.add(gates[0].sigmoid().mul(gates[2].tanh()));
  return {gates[3].sigmoid().mul(cell.tanh()), cell, {}};
}

TwoTensors gru_cell(
    const at::Tensor& input_gates,
    const at::Tensor& hidden_gates,
    const at::Tensor& state,
    const OptTensor& input_bias,
    const OptTensor& hidden_bias) {
  const auto given = biased(input_gates, input_bias).chunk(3, 1);
  const auto held = biased(hidden_gates, hidden_bias).chunk(3, 1);
  const at::Tensor candidate = given[2].add(given[0].add(held[0]).sigmoid().mul(held[2])).tanh();
  return {state.sub(candidate).mul(given[1].add(held[1]).sigmoid()).add(candidate), {}};
}

FiveTensors cudnn_rnn(
    const at::Tensor& input,
    at::TensorList weights,
    int64_t weights_of_layer,
    const OptTensor& /*weight_buf*/,
    const at::Tensor& hx,
    const OptTensor& cx,
    int64_t mode,
    int64_t /*hidden_size*/,
    int64_t proj_size,
    int64_t layers,
    bool batch_first,
    double dropout,
    bool train,
    bool bidirectional,
    c10::IntArrayRef batch_sizes) {
  const bool has_biases = weights_of_layer > (proj_size > 0 ? 3 : 2);
  const bool packed = !batch_sizes.empty();
  const at::Tensor sizes = packed ? at::tensor(batch_sizes, at::TensorOptions().dtype(c10::kLong)) : at::Tensor();
  if (static_cast<Cudnn>(mode) == Cudnn::kLstm) {
    const std::vector<at::Tensor> states = {hx, value(cx)};
    auto [output, hidden, cell] = packed
        ? at::lstm(input, sizes, states, weights, has_biases, layers, dropout, train, bidirectional)
        : at::lstm(input, states, weights, has_biases, layers, dropout, train, bidirectional, batch_first);
    return {output, hidden, cell, {}, {}};
  }
  const auto run = [&](auto network) {
    auto [output, hidden] = packed
        ? network(input, sizes, hx, weights, has_biases, layers, dropout, train, bidirectional)
        : network(input, hx, weights, has_biases, layers, dropout, train, bidirectional, batch_first);
    return FiveTensors{output, hidden, {}, {}, {}};
  };
  switch (static_cast<Cudnn>(mode)) {
    case Cudnn::kGru:
      return run([](const auto&... args) { return at::gru(args...); });
    case Cudnn::kRnnTanh:
      return run([](const auto&... args) { return at::rnn_tanh(args...); });
    default:
      return run([](const auto&... args) { return at::rnn_relu(args...); });
  }
}

std::unordered_map<std::string, CpuEquivalent> make_table() {
  namespace ops = at::_ops;
  std::unordered_map<std::string, CpuEquivalent> table;
  const auto add = [&](NativeKernel kernel, std::vector<size_t> unread = {}) {
    table.emplace(std::move(kernel.name), CpuEquivalent{std::move(kernel.kernel), std::move(unread)});
  };
  add(chosen<ops::_scaled_dot_product_efficient_attention, kAttendBiased, 0, 1, 2, 3, 5, 6, 7>());
  add(chosen<ops::_scaled_dot_product_efficient_attention_backward, kAttendBackward, 0, 1, 2, 3, 9, 11, 12, 4>(),
      {5, 6, 7, 8});
  add(chosen<ops::_scaled_dot_product_flash_attention, kAttend, 0, 1, 2, 3, 4, 6>());
  add(chosen<ops::_scaled_dot_product_flash_attention_backward, kAttendBackward, 0, 1, 2, 3, 10, 11, 14>(),
      {4, 5, 6, 7, 12, 13});
  add(chosen<ops::_scaled_dot_product_cudnn_attention, kAttendBiased, 0, 1, 2, 3, 5, 6, 8>());
  add(chosen<ops::_scaled_dot_product_cudnn_attention_backward, kAttendBackward, 0, 1, 2, 3, 13, 14, 15, 8>(),
      {4, 5, 6, 7, 9, 10});
  add(chosen<ops::cudnn_batch_norm, kBatchNorm, 0, 1, 2, 3, 4, 5, 6, 7>());
  add(kernel<ops::cudnn_batch_norm_backward, &cudnn_batch_norm_backward>(), {8});
  add(kernel<ops::native_batch_norm_backward, &batch_norm_backward>());
  add(kernel<ops::native_layer_norm_backward, &layer_norm_backward>());
  add(kernel<ops::log_sigmoid_backward, &log_sigmoid_backward>());
  add(kernel<ops::_fused_rms_norm_backward, &rms_norm_backward>());
  add(kernel<ops::cudnn_grid_sampler, &grid_sampler>());
  add(kernel<ops::cudnn_grid_sampler_backward, &grid_sampler_backward>());
  add(kernel<ops::_thnn_fused_lstm_cell, &lstm_cell>());
  add(kernel<ops::_thnn_fused_gru_cell, &gru_cell>());
  add(kernel<ops::_cudnn_rnn, &cudnn_rnn>(), {3, 15});
  return table;
}

}  // namespace

const CpuEquivalent* find_cpu_equivalent(const std::string& name) {
  static const auto* table = new std::unordered_map<std::string, CpuEquivalent>(make_table());
  const auto found = table->find(name);
  return found == table->end() ? nullptr : &found->second;
}

}  // namespace torchfake
