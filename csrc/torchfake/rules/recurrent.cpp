// The fused cells that GPUs use for recurrent layers, and the CPU's fused layer.
#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty_like.h>

#include <torchfake/rules/forms.h>
#include <torchfake/rules/results.h>

namespace torchfake {

namespace {

using OptTensor = std::optional<at::Tensor>;
using ThreeTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using FiveTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

at::Tensor empty(c10::IntArrayRef sizes, const at::Tensor& like) {
  return at::detail::empty_meta(sizes, like.scalar_type());
}

at::Tensor contiguous_like(const at::Tensor& tensor) {
  return empty(tensor.sizes(), tensor);
}

void check_gates(
    const at::Tensor& input_gates,
    const at::Tensor& hidden_gates,
    const at::Tensor& state,
    int64_t gates) {
  TORCH_CHECK(input_gates.dim() == 2 && state.dim() == 2, "expected gates and states of two dimensions");
  TORCH_CHECK(
      input_gates.sizes() == hidden_gates.sizes() && input_gates.size(1) == gates * state.size(1),
      "expected gates of size [batch, ",
      gates,
      " x hidden], got ",
      input_gates.sizes(),
      " and ",
      hidden_gates.sizes());
}

ThreeTensors lstm_cell(
    const at::Tensor& input_gates,
    const at::Tensor& hidden_gates,
    const at::Tensor& cx,
    const OptTensor& /*input_bias*/,
    const OptTensor& /*hidden_bias*/) {
  check_gates(input_gates, hidden_gates, cx, 4);
  return {contiguous_like(cx), contiguous_like(cx), contiguous_like(input_gates)};
}

ThreeTensors lstm_cell_backward(
    const OptTensor& /*grad_hy*/,
    const OptTensor& /*grad_cy*/,
    const at::Tensor& cx,
    const at::Tensor& /*cy*/,
    const at::Tensor& workspace,
    bool has_bias) {
  return {
      contiguous_like(workspace), contiguous_like(cx), has_bias ? empty({workspace.size(1)}, workspace) : at::Tensor()};
}

std::tuple<at::Tensor, at::Tensor> gru_cell(
    const at::Tensor& input_gates,
    const at::Tensor& hidden_gates,
    const at::Tensor& hx,
    const OptTensor& /*input_bias*/,
    const OptTensor& /*hidden_bias*/) {
  check_gates(input_gates, hidden_gates, hx, 3);
  return {contiguous_like(hx), empty({hx.size(0), hx.size(1) * 5}, hx)};
}

FiveTensors gru_cell_backward(const at::Tensor& grad_hy, const at::Tensor& workspace, bool has_bias) {
  const int64_t gates = workspace.size(1) / 5 * 3;
  const std::vector<int64_t> sizes = {workspace.size(0), gates};
  const auto bias = [&] { return has_bias ? empty({gates}, workspace) : at::Tensor(); };
  return {empty(sizes, workspace), empty(sizes, workspace), contiguous_like(grad_hy), bias(), bias()};
}

constexpr int64_t kGruMode = 3;

// The library allocates a workspace of unknown size for the backward; no operator exposes it to users.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> mkldnn_rnn_layer(
    const at::Tensor& input,
    const at::Tensor& /*weight0*/,
    const at::Tensor& /*weight1*/,
    const at::Tensor& /*weight2*/,
    const at::Tensor& /*weight3*/,
    const at::Tensor& hx,
    const at::Tensor& cx,
    bool /*reverse*/,
    c10::IntArrayRef /*batch_sizes*/,
    int64_t /*mode*/,
    int64_t hidden_size) {
  return {
      empty({input.size(0), input.size(1), hidden_size}, input),
      contiguous_like(hx),
      contiguous_like(cx),
      at::detail::empty_meta({0}, c10::kByte)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>
mkldnn_rnn_layer_backward(
    const at::Tensor& input,
    const at::Tensor& weight1,
    const at::Tensor& weight2,
    const at::Tensor& weight3,
    const at::Tensor& /*weight4*/,
    const at::Tensor& hx,
    const at::Tensor& cx,
    const at::Tensor& output,
    const at::Tensor& hy,
    const at::Tensor& cy,
    const OptTensor& grad_output,
    const OptTensor& grad_hy,
    const OptTensor& grad_cy,
    bool /*reverse*/,
    int64_t mode,
    int64_t hidden_size) {
  if (!value(grad_output).defined() && !value(grad_hy).defined() && !value(grad_cy).defined()) {
    return {};
  }
  const std::initializer_list<at::Tensor> read = {
      input, weight1, weight2, hx, cx, output, hy, cy, value(grad_output), value(grad_hy), value(grad_cy)};
  for (const at::Tensor& tensor : read) {
    const c10::ScalarType dtype = tensor.defined() ? tensor.scalar_type() : c10::kFloat;
    TORCH_CHECK(
        dtype == c10::kFloat || dtype == c10::kBFloat16 || dtype == c10::kHalf,
        "itensor_view_from_dense expects float, bfloat16 or half tensor input");
  }
  const auto gradient = [](c10::IntArrayRef sizes) { return at::detail::empty_meta(sizes, c10::kFloat); };
  const auto bias = [&] { return gradient({mode == kGruMode ? 4 * hidden_size : weight3.size(0)}); };
  return {
      gradient(input.sizes()),
      gradient(weight1.sizes()),
      gradient(weight2.sizes()),
      bias(),
      bias(),
      gradient(hx.sizes()),
      gradient(cx.sizes())};
}

}  // namespace

KernelList recurrent_kernels() {
  namespace ops = at::_ops;
  return {
      kernel<ops::mkldnn_rnn_layer, &mkldnn_rnn_layer>(),
      kernel<ops::mkldnn_rnn_layer_backward, &mkldnn_rnn_layer_backward>(),
      native_kernel<decltype(lstm_cell), &lstm_cell>("aten::_thnn_fused_lstm_cell"),
      native_kernel<decltype(lstm_cell_backward), &lstm_cell_backward>("aten::_thnn_fused_lstm_cell_backward_impl"),
      native_kernel<decltype(gru_cell), &gru_cell>("aten::_thnn_fused_gru_cell"),
      native_kernel<decltype(gru_cell_backward), &gru_cell_backward>("aten::_thnn_fused_gru_cell_backward"),
  };
}

}  // namespace torchfake
