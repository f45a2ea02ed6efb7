// The fused attention kernels: results have the query's layout, or [batch, length, heads, size].
#include <ATen/OpMathType.h>

#include <torchfake/core/kernel_environment.h>
#include <torchfake/rules/attention.h>
#include <torchfake/rules/forms.h>
#include <torchfake/rules/results.h>
#include <torchfake/rules/rules.h>

#include <numeric>

namespace torchfake {

namespace {

using TwoTensors = std::tuple<at::Tensor, at::Tensor>;
using ThreeTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using FourTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
using FiveTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

void check_flash() {
  TORCH_CHECK(
      !claimed_device().is_cuda() || KernelEnvironment::cuda_capability() >= 80,
      "FlashAttention only supports Ampere GPUs or newer.");
}

void check_efficient(const at::Tensor& query) {
  TORCH_CHECK(
      !claimed_device().is_cuda() || query.scalar_type() != c10::kBFloat16 ||
          KernelEnvironment::cuda_capability() >= 80,
      "cutlassF: no kernel found to launch!");
}

// [batch, heads, length, size], with heads inside length in memory.
at::Tensor heads_inside(int64_t batch, int64_t heads, int64_t length, int64_t size, c10::ScalarType dtype) {
  return empty({batch, length, heads, size}, dtype).transpose(1, 2);
}

at::Tensor gradient_of(const at::Tensor& input) {
  return heads_inside(input.size(0), input.size(1), input.size(2), input.size(3), input.scalar_type());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt, c10::SymInt, at::Tensor, at::Tensor, at::Tensor>
flash(const at::Tensor& query, const at::Tensor& key) {
  check_flash();
  const int64_t length = query.size(2);
  return {
      strided_like(query),
      empty({query.size(0), query.size(1), length}, c10::kFloat),
      at::Tensor(),
      at::Tensor(),
      length,
      key.size(2),
      empty({2}, c10::kUInt64),
      empty({}, c10::kUInt64),
      empty({0}, query.scalar_type())};
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
  check_efficient(query);
  const int64_t length = query.size(2);
  const int64_t padded = (length + 31) / 32 * 32;
  return {
      heads_inside(query.size(0), query.size(1), length, value.size(3), query.scalar_type()),
      empty({query.size(0), query.size(1), compute_log_sumexp ? padded : 0}, c10::kFloat),
      empty({}, c10::kLong),
      empty({}, c10::kLong)};
}

int64_t rounded_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// The gradient of a bias is a slice of a tensor with aligned rows.
at::Tensor bias_gradient(const at::Tensor& bias) {
  TORCH_CHECK(bias.dim() > 0, "expected an attention bias of one dimension or more, got a number");
  std::vector<int64_t> sizes = bias.sizes().vec();
  const int64_t last = sizes.back();
  sizes.back() = rounded_up(last, 16);
  return empty(sizes, bias.scalar_type()).narrow(-1, 0, last);
}

// The log-sum-exp of a forward that was told that nothing needs a gradient is empty: if the bias does, the kernel cannot
// read it.
void check_log_sumexp(const at::Tensor& log_sumexp) {
  constexpr int64_t kAlignment = 8;
  const auto is_aligned = [&](int64_t dim) {
    return log_sumexp.size(dim) <= 1 || log_sumexp.stride(dim) % kAlignment == 0;
  };
  TORCH_CHECK(is_aligned(0), "LSE is not correctly aligned (strideB)");
  TORCH_CHECK(is_aligned(1), "LSE is not correctly aligned (strideH)");
}

FourTensors efficient_backward(
    const at::Tensor& /*grad_out*/,
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const at::Tensor& attn_bias,
    const at::Tensor& /*out*/,
    const at::Tensor& log_sumexp,
    const at::Tensor& /*philox_seed*/,
    const at::Tensor& /*philox_offset*/,
    double /*dropout_p*/,
    std::array<bool, 4> grad_input_mask) {
  if (log_sumexp.dim() == 3 && query.numel() > 0) {
    check_log_sumexp(log_sumexp);
  }
  return {
      gradient_of(query),
      gradient_of(key),
      gradient_of(value),
      attn_bias.defined() && grad_input_mask[3] ? bias_gradient(attn_bias) : at::Tensor()};
}

// A tensor whose dimensions are ordered in memory like the query's.
at::Tensor laid_out_like(const at::Tensor& query, c10::IntArrayRef sizes) {
  if (query.sizes() == sizes) {
    return strided_like(query);
  }
  std::vector<int64_t> order(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return query.stride(a) > query.stride(b); });
  std::vector<int64_t> ordered, places(sizes.size());
  for (size_t i = 0; i < order.size(); ++i) {
    ordered.push_back(sizes[order[i]]);
    places[order[i]] = static_cast<int64_t>(i);
  }
  return empty(ordered, query.scalar_type()).permute(places);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt, c10::SymInt, at::Tensor, at::Tensor, at::Tensor>
cudnn(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const OptTensor& /*attn_bias*/,
    bool compute_log_sumexp) {
  const int64_t length = query.size(2);
  return {
      laid_out_like(query, {query.size(0), query.size(1), length, value.size(3)}),
      compute_log_sumexp ? empty({query.size(0), query.size(1), length, 1}, c10::kFloat) : at::Tensor(),
      at::Tensor(),
      at::Tensor(),
      length,
      key.size(2),
      empty({}, c10::kLong),
      empty({}, c10::kLong),
      at::Tensor()};
}

ThreeTensors strided_gradients(
    const at::Tensor& /*grad_out*/,
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value) {
  return {strided_like(query), strided_like(key), strided_like(value)};
}

// The kernels below take [batch, length, heads, size], or all sequences concatenated, [total, heads, size].
FiveTensors flash_forward(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const OptTensor& cum_seq_q) {
  check_flash();
  for (const at::Tensor* tensor : {&query, &key, &value}) {
    TORCH_CHECK(tensor->stride(-1) == 1, "Input tensor must have contiguous last dimension");
  }
  const at::Tensor logsumexp = cum_seq_q ? empty({query.size(-2), query.size(0)}, c10::kFloat)
                                         : empty({query.size(0), query.size(-2), query.size(1)}, c10::kFloat);
  return {
      strided_like(query),
      logsumexp,
      empty({2}, c10::kUInt64),
      empty({}, c10::kUInt64),
      empty({0}, query.scalar_type())};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt, c10::SymInt> efficient_forward(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const OptTensor& /*bias*/,
    const OptTensor& cu_seqlens_q,
    const OptTensor& /*cu_seqlens_k*/,
    std::optional<int64_t> max_seqlen_q,
    std::optional<int64_t> max_seqlen_k,
    double /*dropout_p*/,
    int64_t /*custom_mask_type*/,
    bool compute_log_sumexp) {
  TORCH_CHECK(!cu_seqlens_q || max_seqlen_q, "max_seqlen_q is needed where cu_seqlens_q is given");
  const int64_t length = cu_seqlens_q ? *max_seqlen_q : query.size(1);
  const int64_t batch = cu_seqlens_q ? cu_seqlens_q->size(0) - 1 : query.size(0);
  return {
      empty({query.size(0), query.size(1), query.size(2), value.size(3)}, query.scalar_type()),
      empty({batch, query.size(2), compute_log_sumexp ? rounded_up(length, 32) : 0}, c10::kFloat),
      empty({}, c10::kLong),
      empty({}, c10::kLong),
      length,
      max_seqlen_k.value_or(key.size(1))};
}

FourTensors efficient_attention_backward(
    const at::Tensor& /*grad_out*/,
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const OptTensor& bias,
    const at::Tensor& /*out*/,
    const OptTensor& /*cu_seqlens_q*/,
    const OptTensor& /*cu_seqlens_k*/,
    int64_t /*max_seqlen_q*/,
    int64_t /*max_seqlen_k*/,
    const at::Tensor& /*logsumexp*/,
    double /*dropout_p*/,
    const at::Tensor& /*philox_seed*/,
    const at::Tensor& /*philox_offset*/,
    int64_t /*custom_mask_type*/,
    bool bias_requires_grad,
    std::optional<double> /*scale*/,
    std::optional<int64_t> /*num_splits_key*/,
    std::optional<int64_t> /*window_size*/,
    bool shared_storage_dqdkdv) {
  const at::Tensor grad_bias = bias_requires_grad && bias ? bias_gradient(*bias) : at::Tensor();
  if (!shared_storage_dqdkdv) {
    return {contiguous_like(query), contiguous_like(key), contiguous_like(value), grad_bias};
  }
  TORCH_CHECK(query.size(1) == key.size(1), "Seqlen must match for `shared_storage_dqdkdv`");
  TORCH_CHECK(query.size(3) == value.size(3), "embedding dim must match for `shared_storage_dqdkdv`");
  const at::Tensor all = empty({query.size(0), query.size(1), 3, query.size(2), query.size(3)}, query.scalar_type());
  return {all.select(2, 0), all.select(2, 1), all.select(2, 2), grad_bias};
}

TwoTensors flash_for_cpu(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    double dropout_p,
    bool /*is_causal*/,
    const OptTensor& attn_mask) {
  TORCH_CHECK(
      c10::isFloatingType(query.scalar_type()),
      "scaled_dot_product_attention_flash_attention: Expected data type in FP32, FP64, BF16, FP16, but got ",
      query.scalar_type(),
      " instead.");
  TORCH_CHECK(
      query.dim() == 4 && key.dim() == 4 && value.dim() == 4,
      "scaled_dot_product_attention_flash_attention: Accept only 4 dims inputs shape of {B, H, T, K}");
  TORCH_CHECK(dropout_p == 0.0, "scaled_dot_product_attention_flash_attention: Currently do not support dropout > 0");
  TORCH_CHECK(
      query.size(3) == value.size(3) && key.size(3) == value.size(3),
      "scaled_dot_product_attention_flash_attention: Q/K/V should have the same head size");
  TORCH_CHECK(
      !attn_mask || attn_mask->scalar_type() == c10::kFloat || attn_mask->scalar_type() == query.scalar_type(),
      "scaled_dot_product_attention_flash_attention: Attention mask is the same data type as query");
  TORCH_CHECK(
      !attn_mask || attn_mask->dim() == 2 || attn_mask->dim() == 4,
      "scaled_dot_product_attention_flash_attention: Attention mask dim in {2, 4}");
  return {
      strided_like(query),
      empty({query.size(0), query.size(2), query.size(1)}, at::toOpMathType(query.scalar_type())).transpose(1, 2)};
}

ThreeTensors flash_for_cpu_backward(
    const at::Tensor& /*grad_out*/,
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value) {
  return {gradient_of(query), gradient_of(key), gradient_of(value)};
}

// _flash_attention_forward(query, key, value, ...) and its variants require contiguous rows.
RuleResult check_rows(Call& call, const ModePtr& /*mode*/) {
  for (size_t i = 0; i < 3; ++i) {
    const at::Tensor tensor = call.arg(i).toTensor();
    TORCH_CHECK(
        !tensor.is_cuda() || tensor.stride(-1) == 1,
        "Input tensor must have contiguous last dimension, but argument ",
        i,
        " has strides ",
        tensor.strides());
  }
  return RuleResult::kContinue;
}

// For backends with a kernel of their own; PyTorch's own devices have none.
RuleResult refuse_overrideable(Call& call, const ModePtr& /*mode*/) {
  const at::Tensor query = call.arg(0).toTensor();
  TORCH_CHECK_NOT_IMPLEMENTED(
      !query.is_cpu() && !query.is_cuda(),
      call.op_name(),
      " not implemented. This is an operator for privateuse1 backends; on ",
      query.device(),
      " use scaled_dot_product_attention.");
  return RuleResult::kContinue;
}

}  // namespace

RuleList attention_rules() {
  return {
      {"_fused_sdp_choice", &fused_choice},
      {"_scaled_dot_product_fused_attention_overrideable*", &refuse_overrideable},
      {"_flash_attention_forward. _efficient_attention_forward.", &check_rows},
  };
}

KernelList attention_kernels() {
  namespace ops = at::_ops;
  return {
      kernel<ops::_scaled_dot_product_flash_attention, &flash>(),
      kernel<ops::_scaled_dot_product_flash_attention_backward, &strided_gradients>(),
      native_kernel<decltype(efficient), &efficient>("aten::_scaled_dot_product_efficient_attention"),
      kernel<ops::_scaled_dot_product_efficient_attention_backward, &efficient_backward>(),
      kernel<ops::_scaled_dot_product_cudnn_attention, &cudnn>(),
      kernel<ops::_scaled_dot_product_cudnn_attention_backward, &strided_gradients>(),
      kernel<ops::_flash_attention_forward, &flash_forward>(),
      kernel<ops::_flash_attention_backward, &strided_gradients>(),
      kernel<ops::_efficient_attention_forward, &efficient_forward>(),
      kernel<ops::_efficient_attention_backward, &efficient_attention_backward>(),
      kernel<ops::_scaled_dot_product_flash_attention_for_cpu, &flash_for_cpu>(),
      kernel<ops::_scaled_dot_product_flash_attention_for_cpu_backward, &flash_for_cpu_backward>(),
  };
}

}  // namespace torchfake
