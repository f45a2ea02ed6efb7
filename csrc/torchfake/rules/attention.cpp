// Attention: the kernel that PyTorch would choose on the claimed device.
#include <torchfake/rules/attention.h>

#include <ATen/SDPBackend.h>
#include <ATen/ops/_fused_sdp_choice_native.h>
#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/where.h>

#include <torchfake/core/call_context.h>
#include <torchfake/core/kernel_environment.h>
#include <torchfake/rules/rules.h>

#include <limits>

namespace torchfake {

namespace {

struct Attention {
  int64_t capability;  // of the claimed card
  at::Tensor query, key, value;
  std::optional<at::Tensor> mask;
  double dropout;
  bool is_causal;
  std::optional<double> scale;
  bool enable_gqa;
};

bool needs_grad(const at::Tensor& tensor) {
  return KernelEnvironment::enabled(KernelEnvironment::kGradMode) && KernelEnvironment::requires_grad(tensor);
}

bool needs_grad(const Attention& a) {
  return needs_grad(a.query) || needs_grad(a.key) || needs_grad(a.value);
}

// Requirements of both fused kernels on their inputs.
bool fits_fused(const Attention& a) {
  for (const at::Tensor* tensor : {&a.query, &a.key, &a.value}) {
    if (tensor->dim() != 4 || tensor->sym_stride(-1) != 1 ||
        tensor->sym_numel().sym_eq(0).guard_or_false(__FILE__, __LINE__) ||
        tensor->scalar_type() != a.query.scalar_type() || tensor->sym_size(0) != a.query.sym_size(0)) {
      return false;
    }
  }
  if (a.mask && a.mask->dim() > 0 && a.mask->sym_stride(-1) != 1) {
    return false;  // a bias permuted to this shape
  }
  const bool same_heads = a.query.sym_size(1) == a.key.sym_size(1) && a.query.sym_size(1) == a.value.sym_size(1);
  const bool grouped =
      a.enable_gqa && a.key.sym_size(1) == a.value.sym_size(1) && a.query.sym_size(1) % a.key.sym_size(1) == 0;
  return same_heads || grouped;
}

bool is_low_precision(c10::ScalarType dtype) {
  return dtype == c10::kHalf || dtype == c10::kBFloat16;
}

// The largest head size that cuDNN accepts: larger on Hopper, and on Blackwell only for DeepSeek's head sizes.
int64_t largest_head_of_cudnn(const Attention& a) {
  if (a.capability == 90) {
    return 256;
  }
  return a.capability / 10 == 10 && a.query.sym_size(-1) == 192 && a.value.sym_size(-1) == 128 ? 192 : 128;
}

bool fits_cudnn(const Attention& a) {
  if (a.capability < 80) {
    return false;
  }
  const auto takes = [&](const c10::SymInt& size) { return size % 8 == 0 && size <= largest_head_of_cudnn(a); };
  return KernelEnvironment::enabled(KernelEnvironment::kCudnnSdp) && fits_fused(a) &&
      is_low_precision(a.query.scalar_type()) && a.query.sym_size(-1) == a.key.sym_size(-1) &&
      takes(a.query.sym_size(-1)) && takes(a.value.sym_size(-1)) && a.key.sym_size(2) > 1 &&
      !(a.query.sym_size(2) == 1 && a.dropout > 0) && !(a.mask && KernelEnvironment::requires_grad(*a.mask));
}

// Consumer Ampere, Ada and Blackwell cards have too little shared memory for the backward of large heads.
bool trains_with_flash(const Attention& a) {
  const c10::SymInt head = a.query.sym_size(-1);
  const bool has_less = (a.capability >= 86 && a.capability <= 89) || a.capability >= 120;
  const bool is_large = (head > 192 && head <= 224) || (head > 224 && a.dropout > 0);
  return !(has_less && is_large && needs_grad(a));
}

bool fits_flash(const Attention& a) {
  if (a.capability < 80) {
    return false;
  }
  return KernelEnvironment::enabled(KernelEnvironment::kFlashSdp) && fits_fused(a) &&
      is_low_precision(a.query.scalar_type()) && !a.mask && a.query.sym_size(-1) == a.key.sym_size(-1) &&
      a.query.sym_size(-1) == a.value.sym_size(-1) && a.query.sym_size(-1) <= 256 && trains_with_flash(a) &&
      !(a.is_causal && a.query.sym_size(2) != a.key.sym_size(2) && a.query.sym_size(2) > a.key.sym_size(2));
}

bool fits_efficient(const Attention& a) {
  const c10::ScalarType dtype = a.query.scalar_type();
  // Older cards have no tensor cores for this dtype and accept any size.
  const int64_t alignment = dtype == c10::kFloat ? (a.capability >= 80 ? 4 : 1) : 8;
  const bool aligned = a.query.sym_size(-1) % alignment == 0 && a.value.sym_size(-1) % alignment == 0;
  return KernelEnvironment::enabled(KernelEnvironment::kMemEfficientSdp) && fits_fused(a) && !a.enable_gqa &&
      (dtype == c10::kHalf || dtype == c10::kFloat || (dtype == c10::kBFloat16 && a.capability >= 80)) && aligned &&
      a.query.sym_size(-1) == a.key.sym_size(-1);
}

at::Tensor pad_last_dim(const at::Tensor& tensor, int64_t multiple) {
  const c10::SymInt rest = tensor.sym_size(-1) % multiple;
  return rest == 0 ? tensor : at::constant_pad_nd_symint(tensor, {0, multiple - rest}, 0);
}

at::Tensor flash(const Attention& a) {
  const c10::SymInt size = a.query.sym_size(-1);
  const double scale = a.scale.value_or(1.0 / std::sqrt(static_cast<double>(size.guard_int(__FILE__, __LINE__))));
  auto outputs = at::_scaled_dot_product_flash_attention(
      pad_last_dim(a.query, 8),
      pad_last_dim(a.key, 8),
      pad_last_dim(a.value, 8),
      a.dropout,
      a.is_causal,
      /*return_debug_mask=*/false,
      scale);
  const at::Tensor output = std::get<0>(outputs);
  return size % 8 == 0 ? output : output.slice_symint(-1, 0, size);
}

// The attention mask as an additive bias, if there is one.
std::optional<at::Tensor> added_mask(const Attention& a) {
  if (!a.mask || a.mask->scalar_type() != c10::kBool) {
    return a.mask;
  }
  const auto options = a.query.options();
  return at::where(
      *a.mask, at::scalar_tensor(0.0, options), at::scalar_tensor(-std::numeric_limits<double>::infinity(), options));
}

constexpr int64_t kBiasAlignment = 8;

// Whether the kernel can read a bias without a copy. As in PyTorch, a symbolic stride counts as unaligned.
bool is_aligned(const at::Tensor& bias) {
  for (int64_t i = 0; i + 1 < bias.dim(); ++i) {
    const auto stride = bias.sym_stride(i).maybe_as_int();
    if (!stride || *stride % kBiasAlignment != 0) {
      return false;
    }
  }
  return bias.sym_stride(-1) == 1;
}

// The same, expanded to the shape of the scores.
std::optional<at::Tensor> bias_of(const Attention& a) {
  const std::optional<at::Tensor> added = added_mask(a);
  if (!added) {
    return std::nullopt;
  }
  at::Tensor bias = *added;
  if (!is_aligned(bias)) {
    const c10::SymInt keys = bias.sym_size(-1);
    bias = at::constant_pad_nd_symint(bias, {0, kBiasAlignment - keys % kBiasAlignment}, 0).slice_symint(-1, 0, keys);
  }
  return bias.expand_symint({a.query.sym_size(0), a.query.sym_size(1), a.query.sym_size(2), a.key.sym_size(2)});
}

at::Tensor efficient(const Attention& a) {
  auto outputs = at::_scaled_dot_product_efficient_attention(
      a.query, a.key, a.value, bias_of(a), /*compute_log_sumexp=*/needs_grad(a), a.dropout, a.is_causal, a.scale);
  return std::get<0>(outputs);
}

at::Tensor cudnn(const Attention& a) {
  auto outputs = at::_scaled_dot_product_cudnn_attention(
      a.query,
      a.key,
      a.value,
      added_mask(a),
      /*compute_log_sumexp=*/needs_grad(a),
      a.dropout,
      a.is_causal,
      /*return_debug_mask=*/false,
      a.scale);
  return std::get<0>(outputs);
}

at::Tensor math(const Attention& a) {
  auto outputs = at::_scaled_dot_product_attention_math(
      a.query, a.key, a.value, added_mask(a), a.dropout, a.is_causal, std::nullopt, a.scale, a.enable_gqa);
  return std::get<0>(outputs);
}

void check(const Attention& a) {
  TORCH_CHECK(
      a.query.scalar_type() == a.key.scalar_type() && a.query.scalar_type() == a.value.scalar_type(),
      "Expected query, key, and value to have the same dtype, but got query.dtype: ",
      a.query.dtype(),
      " key.dtype: ",
      a.key.dtype(),
      " and value.dtype: ",
      a.value.dtype(),
      " instead.");
  TORCH_CHECK(
      a.query.device() == a.key.device() && a.query.device() == a.value.device(),
      "Expected query, key, and value to have the same device type, but got query.device: ",
      a.query.device(),
      " key.device: ",
      a.key.device(),
      " and value.device: ",
      a.value.device(),
      " instead.");
  TORCH_CHECK(
      a.query.dim() >= 2 && a.key.dim() >= 2 && a.value.dim() >= 2,
      "Expected query, key, and value to all be  at least 2 dimensional, but got query.dim: ",
      a.query.dim(),
      " key.dim: ",
      a.key.dim(),
      " and value.dim: ",
      a.value.dim(),
      " instead.");
  TORCH_CHECK(
      !a.mask || a.mask->scalar_type() == c10::kBool || a.mask->scalar_type() == a.query.scalar_type() ||
          a.mask->scalar_type() == c10::kFloat,
      "Expected attn_mask dtype to be bool or float or to match query dtype, but got attn_mask.dtype: ",
      a.mask ? a.mask->scalar_type() : c10::kBool,
      " and  query.dtype: ",
      a.query.scalar_type(),
      " instead.");
}

Attention arguments_of(const Call& call) {
  const ModePtr* mode = call.find_mode();
  return {
      mode == nullptr || !*mode ? 90 : KernelEnvironment::cuda_capability(**mode),
      call.arg(0).toTensor(),
      call.arg(1).toTensor(),
      call.arg(2).toTensor(),
      call.arg(3).toOptional<at::Tensor>(),
      call.arg(4).toDouble(),
      call.arg(5).toBool(),
      call.arg(6).toOptional<double>(),
      call.arg(7).toBool()};
}

// By default cuDNN is tried first on Hopper and Blackwell, last elsewhere.
KernelEnvironment::SdpOrder order_for(const Attention& a) {
  using enum at::SDPBackend;
  if (const auto order = KernelEnvironment::sdp_priority()) {
    return *order;
  }
  const bool prefers_cudnn = a.capability / 10 == 9 || a.capability / 10 == 10;
  return prefers_cudnn
      ? KernelEnvironment::SdpOrder{cudnn_attention, flash_attention, efficient_attention, math, overrideable}
      : KernelEnvironment::SdpOrder{flash_attention, efficient_attention, math, cudnn_attention, overrideable};
}

bool fits(at::SDPBackend backend, const Attention& a) {
  switch (backend) {
    case at::SDPBackend::cudnn_attention:
      return fits_cudnn(a);
    case at::SDPBackend::flash_attention:
      return fits_flash(a);
    case at::SDPBackend::efficient_attention:
      return fits_efficient(a);
    case at::SDPBackend::math:
      return KernelEnvironment::enabled(KernelEnvironment::kMathSdp);
    default:
      TORCH_CHECK(
          backend == at::SDPBackend::overrideable && !KernelEnvironment::enabled(KernelEnvironment::kOverrideableSdp),
          "Invalid backend");
      return false;
  }
}

bool all_are_disabled() {
  using Settings = KernelEnvironment;
  return !Settings::enabled(Settings::kMathSdp) && !Settings::enabled(Settings::kFlashSdp) &&
      !Settings::enabled(Settings::kMemEfficientSdp) && !Settings::enabled(Settings::kCudnnSdp);
}

at::SDPBackend choice_on_gpu(const Attention& a) {
  if (!a.query.device().is_cuda()) {
    return at::SDPBackend::math;
  }
  if (all_are_disabled()) {
    return at::SDPBackend::error;
  }
  for (const at::SDPBackend backend : order_for(a)) {
    if (fits(backend, a)) {
      return backend;
    }
  }
  TORCH_CHECK(false, "No available kernel. Aborting execution.");
}

}  // namespace

// scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, *, scale, enable_gqa)
bool scaled_dot_product_attention(const Call& call) {
  const Attention a = arguments_of(call);
  if (a.query.device().is_cpu()) {
    return false;  // PyTorch chooses among its CPU kernels by the same metadata
  }
  check(a);
  at::Tensor output;
  switch (choice_on_gpu(a)) {
    case at::SDPBackend::cudnn_attention:
      output = cudnn(a);
      break;
    case at::SDPBackend::flash_attention:
      output = flash(a);
      break;
    case at::SDPBackend::efficient_attention:
      output = efficient(a);
      break;
    case at::SDPBackend::math:
      output = math(a);
      break;
    default:
      TORCH_CHECK(false, "No viable backend for scaled_dot_product_attention was found.");
  }
  answer_with(call, std::move(output));
  return true;
}

RuleResult fused_choice(Call& call, const ModePtr& /*mode*/) {
  const Attention a = arguments_of(call);
  if (!a.query.device().is_cpu()) {
    return answer_with(call, static_cast<int64_t>(choice_on_gpu(a)));
  }
  KernelEnvironment::note_all();
  if (a.mask) {
    (void)KernelEnvironment::requires_grad(*a.mask);  // as PyTorch's choice does
  }
  return answer_with(
      call,
      at::native::_fused_sdp_choice_cpp(
          a.query, a.key, a.value, a.mask, a.dropout, a.is_causal, a.scale, a.enable_gqa));
}

}  // namespace torchfake
