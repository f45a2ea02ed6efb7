// The fused operators of PyTorch's transformer layers in evaluation: attention with its projections, and a whole
// encoder layer.
#include <torchfake/rules/forms.h>
#include <torchfake/rules/results.h>

namespace torchfake {

namespace {

using TwoTensors = std::tuple<at::Tensor, at::Tensor>;
using ThreeTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

struct Projection {
  const at::Tensor& weight;
  const at::Tensor& bias;
};

void check_heads(int64_t embed_dim, int64_t heads) {
  TORCH_CHECK(heads > 0 && embed_dim % heads == 0, "`embed_dim` must divide evenly by `num_heads`, got ", heads);
}

void check_attention(const at::Tensor& query, int64_t embed_dim, int64_t num_head, const Projection& qkv) {
  TORCH_CHECK(query.dim() == 3, "expected 3-D `query`, got ", query.dim(), "-D tensor");
  TORCH_CHECK(
      query.size(2) == embed_dim, "passed-in embed_dim ", embed_dim, " didn't match last dim of query ", query.size(2));
  TORCH_CHECK(qkv.weight.dim() == 2, "expected 2-D `qkv_weight`, got ", qkv.weight.dim(), "-D tensor");
  TORCH_CHECK(embed_dim * 3 == qkv.weight.size(0), "expected `qkv_weight` first dim to be 3x embed_dim");
  TORCH_CHECK(embed_dim == qkv.weight.size(1), "expected `qkv_weight` second dim to be embed_Dim");
  TORCH_CHECK(qkv.bias.dim() == 1, "expected 1-D `qkv_bias`, got ", qkv.bias.dim(), "-D tensor");
  TORCH_CHECK(qkv.bias.size(0) == 3 * embed_dim, "expected `qkv_bias` first dim and first dim of query to be equal");
  check_heads(embed_dim, num_head);
}

void check_same_dtype(const at::Tensor& input, const at::Tensor& weight) {
  TORCH_CHECK(
      input.scalar_type() == weight.scalar_type(),
      "expected m1 and m2 to have the same dtype, but got: ",
      input.dtype(),
      " != ",
      weight.dtype());
}

TwoTensors attention(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    int64_t embed_dim,
    int64_t num_head,
    const at::Tensor& qkv_weight,
    const at::Tensor& qkv_bias,
    const at::Tensor& proj_weight,
    const at::Tensor& proj_bias,
    const OptTensor& /*mask*/,
    bool need_weights,
    bool average_attn_weights) {
  check_attention(query, embed_dim, num_head, {qkv_weight, qkv_bias});
  TORCH_CHECK(
      query.sizes() == key.sizes() && key.sizes() == value.sizes(), "expected `query`/`key`/`value` shapes to match");
  if (query.numel() == 0) {
    return {contiguous_like(query), at::Tensor()};
  }
  check_same_dtype(query, qkv_weight);
  check_same_dtype(query, proj_weight);
  TORCH_CHECK(proj_weight.dim() == 2 && proj_weight.size(1) == embed_dim, "expected `proj_weight` for embed_dim");
  proj_bias.expand({proj_weight.size(0)});
  const int64_t batch = query.size(0);
  const int64_t length = query.size(1);
  const at::Tensor output = empty({batch, length, proj_weight.size(0)}, query.scalar_type());
  if (!need_weights) {
    return {output, at::Tensor()};
  }
  return {
      output,
      average_attn_weights ? empty({batch, length, length}, query.scalar_type())
                           : empty({batch, num_head, length, length}, query.scalar_type())};
}

void check_linear(const at::Tensor& input, const Projection& linear) {
  check_same_dtype(input, linear.weight);
  TORCH_CHECK(
      linear.weight.dim() == 2 && linear.weight.size(1) == input.size(-1),
      "mat1 and mat2 shapes cannot be multiplied (",
      input.sizes(),
      " and ",
      linear.weight.sizes(),
      ')');
  linear.bias.expand({linear.weight.size(0)});
}

at::Tensor encoder_layer(
    const at::Tensor& src,
    int64_t embed_dim,
    int64_t num_heads,
    const at::Tensor& qkv_weight,
    const at::Tensor& qkv_bias,
    const at::Tensor& proj_weight,
    const at::Tensor& proj_bias,
    bool /*use_gelu*/,
    bool /*norm_first*/,
    double /*eps*/,
    const at::Tensor& /*norm_weight_1*/,
    const at::Tensor& /*norm_bias_1*/,
    const at::Tensor& /*norm_weight_2*/,
    const at::Tensor& /*norm_bias_2*/,
    const at::Tensor& ffn_weight_1,
    const at::Tensor& ffn_bias_1,
    const at::Tensor& ffn_weight_2,
    const at::Tensor& ffn_bias_2) {
  if (src.numel() == 0) {
    return src.clone();
  }
  check_attention(src, embed_dim, num_heads, {qkv_weight, qkv_bias});
  check_linear(src, {qkv_weight, qkv_bias});
  check_linear(src, {proj_weight, proj_bias});
  check_linear(src, {ffn_weight_1, ffn_bias_1});
  check_linear(empty({ffn_weight_1.size(0)}, src.scalar_type()), {ffn_weight_2, ffn_bias_2});
  return contiguous_like(src);
}

// Kinds of masks: shared by all scores, [length, length]; shared by all queries, [batch, length]; as large as the
// scores.
enum MaskType : int64_t { kScores = 0, kKeys = 1, kAll = 2 };

at::Tensor masked_softmax(
    const at::Tensor& self,
    const at::Tensor& mask,
    std::optional<int64_t> dim,
    std::optional<int64_t> mask_type) {
  TORCH_CHECK(mask.scalar_type() == c10::kBool, "Mask should be a boolean tensor");
  const std::optional<int64_t> type = mask.dim() != 2 || self.dim() != 4 ? std::optional<int64_t>(kAll) : mask_type;
  TORCH_CHECK(type.has_value(), "Mask Type should be defined");
  if (type == kAll) {
    TORCH_CHECK(self.sizes() == mask.sizes(), "For mask_type == 2 mask shape should match input shape");
  } else if (type == kKeys) {
    TORCH_CHECK(
        self.size(0) == mask.size(0) && self.size(2) == mask.size(1), "For mask_type == 1 mask shape should be (B, L)");
  } else if (type == kScores) {
    TORCH_CHECK(
        self.size(2) == mask.size(0) && self.size(2) == mask.size(1), "For mask_type == 0 mask shape should be (L, L)");
  }
  c10::maybe_wrap_dim(dim.value_or(-1), self.dim());
  require_floating(self, "masked_softmax");
  return strided_like(self);
}

at::Tensor masked_softmax_backward(const at::Tensor& grad, const at::Tensor& /*output*/, const at::Tensor& mask) {
  TORCH_CHECK(grad.sizes() == mask.sizes(), "Mask shape should match grad shape");
  TORCH_CHECK(mask.scalar_type() == c10::kBool, "Mask should be a boolean tensor");
  // The CPU treats a zero-dimensional tensor as a vector of one element, and returns one.
  return grad.dim() == 0 && claimed_device().is_cpu() ? empty({1}, grad.scalar_type()) : contiguous_like(grad);
}

// Three slices of one tensor.
ThreeTensors transform_qkv(const at::Tensor& qkv, const at::Tensor& qkv_bias, int64_t num_heads) {
  const int64_t embed_dim = qkv.size(2) / 3;
  check_heads(embed_dim, num_heads);
  TORCH_CHECK(qkv_bias.numel() == qkv.size(2), "expected as many biases as there are projections");
  const at::Tensor all = empty({3 * qkv.size(0), num_heads, qkv.size(1), embed_dim / num_heads}, qkv.scalar_type());
  const auto part = [&](int64_t i) { return all.narrow(0, i * qkv.size(0), qkv.size(0)); };
  return {part(0), part(1), part(2)};
}

}  // namespace

KernelList transformer_kernels() {
  namespace ops = at::_ops;
  return {
      kernel<ops::_native_multi_head_attention, &attention>(),
      kernel<ops::_transformer_encoder_layer_fwd, &encoder_layer>(),
      kernel<ops::_masked_softmax, &masked_softmax>(),
      kernel<ops::_masked_softmax_backward, &masked_softmax_backward>(),
      kernel<ops::_transform_bias_rescale_qkv, &transform_qkv>(),
  };
}

}  // namespace torchfake
