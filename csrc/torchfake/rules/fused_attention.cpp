// The fused attention kernels of GPUs: results lie in memory as [batch, length, heads, size].
#include <ATen/EmptyTensor.h>

#include <torchfake/rules/kernels.h>

namespace torchfake {

namespace {

using OptTensor = std::optional<at::Tensor>;

at::Tensor empty(c10::IntArrayRef sizes, c10::ScalarType dtype) {
  return at::detail::empty_meta(sizes, dtype);
}

// [batch, heads, length, size], with heads inside length.
at::Tensor heads_inside(int64_t batch, int64_t heads, int64_t length, int64_t size, c10::ScalarType dtype) {
  return empty({batch, length, heads, size}, dtype).transpose(1, 2);
}

at::Tensor gradient_of(const at::Tensor& input) {
  return heads_inside(input.size(0), input.size(1), input.size(2), input.size(3), input.scalar_type());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt, c10::SymInt, at::Tensor, at::Tensor, at::Tensor>
flash(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& /*value*/,
    double /*dropout_p*/,
    bool /*is_causal*/,
    bool /*return_debug_mask*/,
    std::optional<double> /*scale*/) {
  const int64_t length = query.size(2);
  return {
      gradient_of(query),
      empty({query.size(0), query.size(1), length}, c10::kFloat),
      at::Tensor(),
      at::Tensor(),
      length,
      key.size(2),
      empty({2}, c10::kUInt64),
      empty({}, c10::kUInt64),
      empty({0}, query.scalar_type())};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> flash_backward(
    const at::Tensor& /*grad_out*/,
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const at::Tensor& /*out*/,
    const at::Tensor& /*logsumexp*/,
    const at::Tensor& /*cum_seq_q*/,
    const at::Tensor& /*cum_seq_k*/,
    int64_t /*max_q*/,
    int64_t /*max_k*/,
    double /*dropout_p*/,
    bool /*is_causal*/,
    const at::Tensor& /*philox_seed*/,
    const at::Tensor& /*philox_offset*/,
    std::optional<double> /*scale*/) {
  return {gradient_of(query), gradient_of(key), gradient_of(value)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> efficient(
    const at::Tensor& query,
    const at::Tensor& /*key*/,
    const at::Tensor& value,
    const OptTensor& /*attn_bias*/,
    bool compute_log_sumexp,
    double /*dropout_p*/,
    bool /*is_causal*/,
    std::optional<double> /*scale*/) {
  const int64_t length = query.size(2);
  const int64_t padded = (length + 31) / 32 * 32;
  return {
      heads_inside(query.size(0), query.size(1), length, value.size(3), query.scalar_type()),
      empty({query.size(0), query.size(1), compute_log_sumexp ? padded : 0}, c10::kFloat),
      empty({}, c10::kLong),
      empty({}, c10::kLong)};
}

}  // namespace

KernelList attention_kernels() {
  return {
      native_kernel<decltype(flash), &flash>("aten::_scaled_dot_product_flash_attention"),
      native_kernel<decltype(flash_backward), &flash_backward>("aten::_scaled_dot_product_flash_attention_backward"),
      native_kernel<decltype(efficient), &efficient>("aten::_scaled_dot_product_efficient_attention"),
  };
}

}  // namespace torchfake
