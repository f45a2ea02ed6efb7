// Fake quantization for training, and products with quantized weights.
#include <torchfake/rules/forms.h>
#include <torchfake/rules/results.h>

namespace torchfake {

namespace {

using TwoTensors = std::tuple<at::Tensor, at::Tensor>;
using ThreeTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

void check_range(int64_t quant_min, int64_t quant_max) {
  TORCH_CHECK(quant_min <= quant_max, "`quant_min` should be less than or equal to `quant_max`.");
}

// The quantized tensor, and a mask of the elements that were not clamped.
TwoTensors with_mask(const at::Tensor& self) {
  require_floating(self, "fake_quantize");
  return {strided_like(self), strided_like(self, c10::kBool)};
}

TwoTensors per_tensor(
    const at::Tensor& self,
    double /*scale*/,
    int64_t zero_point,
    int64_t quant_min,
    int64_t quant_max) {
  check_range(quant_min, quant_max);
  TORCH_CHECK(
      zero_point >= quant_min && zero_point <= quant_max, "`zero_point` must be between `quant_min` and `quant_max`.");
  return with_mask(self);
}

TwoTensors per_tensor_by_tensors(
    const at::Tensor& self,
    const at::Tensor& /*scale*/,
    const at::Tensor& /*zero_point*/,
    const at::Tensor& /*fake_quant_enabled*/,
    int64_t quant_min,
    int64_t quant_max) {
  check_range(quant_min, quant_max);
  return with_mask(self);
}

void check_channels(const at::Tensor& self, const at::Tensor& scale, const at::Tensor& zero_point, int64_t axis) {
  TORCH_CHECK(scale.dim() == 1, "scale should be a 1-D tensor");
  TORCH_CHECK(zero_point.dim() == 1, "zero point should be a 1-D tensor");
  TORCH_CHECK(scale.numel() == zero_point.numel(), "scale and zero-point need to have the same dimensions");
  TORCH_CHECK(
      scale.numel() == self.size(axis), "dimensions of scale and zero-point are not consistent with input tensor");
}

// Whether the zero points are in range depends on their values and is not checked.
TwoTensors per_channel(
    const at::Tensor& self,
    const at::Tensor& scale,
    const at::Tensor& zero_point,
    int64_t axis,
    int64_t quant_min,
    int64_t quant_max) {
  TORCH_CHECK(
      scale.scalar_type() == c10::kFloat || scale.scalar_type() == c10::kBFloat16,
      "Scale must be Float or BFloat16, found ",
      scale.scalar_type());
  TORCH_CHECK(
      zero_point.scalar_type() == c10::kInt || zero_point.scalar_type() == c10::kFloat ||
          zero_point.scalar_type() == c10::kHalf,
      "Zero-point must be Int32, Float or Half, found ",
      zero_point.scalar_type());
  check_channels(self, scale, zero_point, axis);
  check_range(quant_min, quant_max);
  TORCH_CHECK(axis >= 0 && axis <= self.dim(), "`axis` must be between 0 and number of dimensions of input");
  return with_mask(self);
}

at::Tensor learnable_per_tensor(
    const at::Tensor& self,
    const at::Tensor& /*scale*/,
    const at::Tensor& /*zero_point*/,
    int64_t quant_min,
    int64_t quant_max) {
  check_range(quant_min, quant_max);
  return strided_like(self);
}

at::Tensor learnable_per_channel(
    const at::Tensor& self,
    const at::Tensor& scale,
    const at::Tensor& zero_point,
    int64_t axis,
    int64_t quant_min,
    int64_t quant_max) {
  return std::get<0>(per_channel(self, scale, contiguous_like(zero_point, c10::kInt), axis, quant_min, quant_max));
}

// Requirements of both backwards: float tensors, or bfloat16, which is computed in float.
void check_gradient(
    const at::Tensor& grad,
    const at::Tensor& self,
    const at::Tensor& scale,
    const at::Tensor& zero_point,
    const char* name) {
  for (const at::Tensor* tensor : {&grad, &self, &scale, &zero_point}) {
    TORCH_CHECK(
        tensor->scalar_type() == c10::kFloat || self.scalar_type() == c10::kBFloat16,
        name,
        ": expected Float, got ",
        tensor->scalar_type());
  }
}

// Gradients are float; for an empty input, the arguments themselves are returned.
ThreeTensors learnable_gradients(
    const at::Tensor& self,
    const at::Tensor& scale,
    const at::Tensor& zero_point,
    int64_t channels) {
  if (self.numel() == 0) {
    return {self, scale, zero_point};
  }
  return {strided_like(self, c10::kFloat), empty({channels}, c10::kFloat), empty({channels}, c10::kFloat)};
}

ThreeTensors learnable_per_tensor_backward(
    const at::Tensor& grad,
    const at::Tensor& self,
    const at::Tensor& scale,
    const at::Tensor& zero_point,
    int64_t quant_min,
    int64_t quant_max) {
  check_gradient(grad, self, scale, zero_point, "_fake_quantize_learnable_per_tensor_affine_backward");
  TORCH_CHECK(self.numel() == grad.numel(), "`X` and `dY` are not the same size");
  TORCH_CHECK(
      quant_min <= 0 && quant_max >= 0,
      "`quant_min` should be less than or equal to `quant_max`, and the quantization range should include 0.");
  return learnable_gradients(self, scale, zero_point, /*channels=*/1);
}

ThreeTensors learnable_per_channel_backward(
    const at::Tensor& grad,
    const at::Tensor& self,
    const at::Tensor& scale,
    const at::Tensor& zero_point,
    int64_t axis,
    int64_t quant_min,
    int64_t quant_max) {
  check_gradient(grad, self, scale, zero_point, "_fake_quantize_learnable_per_channel_affine_backward");
  TORCH_CHECK(self.sizes() == grad.sizes(), "`X` and `dY` are not the same size");
  TORCH_CHECK(quant_min <= 0 && quant_max >= 0, "Expecting `quant_min` <= 0 and `quant_max` >= 0");
  check_channels(self, scale, zero_point, axis);
  TORCH_CHECK(axis >= 0 && axis < self.dim(), "`axis` must be between 0 and number of dimensions of input");
  return learnable_gradients(self, scale, zero_point, self.size(axis));
}

// The observer keeps a range per channel, and sizes its tensors on the first input.
TwoTensors observed(
    const at::Tensor& self,
    const at::Tensor& /*observer_on*/,
    const at::Tensor& /*fake_quant_on*/,
    at::Tensor& running_min,
    at::Tensor& running_max,
    at::Tensor& scale,
    at::Tensor& zero_point,
    double /*averaging_const*/,
    int64_t /*quant_min*/,
    int64_t /*quant_max*/,
    int64_t ch_axis,
    bool per_row_fake_quant) {
  TORCH_CHECK(ch_axis < self.dim(), "Error in fused_moving_avg_obs_fake_quant_cpu: ch_axis must be < self.dim()");
  TORCH_CHECK(self.scalar_type() == c10::kFloat, "expected scalar type Float but found ", self.scalar_type());
  if (per_row_fake_quant) {
    TORCH_CHECK(
        ch_axis == 0, "Per-channel FakeQuant in fused_moving_avg_obs_fake_quant is only supported on axis == 0");
    for (const at::Tensor& range : {running_min, running_max, scale, zero_point}) {
      if (range.numel() == 0) {
        range.resize_(self.size(ch_axis));
      }
    }
  }
  return with_mask(self);
}

void check_matrices(const at::Tensor& self, const at::Tensor& mat2) {
  TORCH_CHECK(self.dim() == 2, "Expected self to be of dimension 2 but got ", self.dim());
  TORCH_CHECK(mat2.dim() == 2, "Expected mat2 to be of dimension 2 but got ", mat2.dim());
}

void check_gpu_tiles(const at::Tensor& self, const at::Tensor& mat2) {
  TORCH_CHECK(self.size(0) > 16, "self.size(0) needs to be greater than 16, but got ", self.size(0));
  TORCH_CHECK(
      self.size(1) > 0 && self.size(1) % 8 == 0,
      "self.size(1) needs to be greater than 0 and a multiple of 8, but got ",
      self.size(1));
  TORCH_CHECK(
      mat2.size(1) > 0 && mat2.size(1) % 8 == 0,
      "mat2.size(1) needs to be greater than 0 and a multiple of 8, but got ",
      mat2.size(1));
}

at::Tensor int_mm(const at::Tensor& self, const at::Tensor& mat2) {
  check_matrices(self, mat2);
  if (claimed_device().is_cuda()) {
    check_gpu_tiles(self, mat2);
  }
  TORCH_CHECK(
      self.size(1) == mat2.size(0),
      "self.size(1) needs to match mat2.size(0) but got ",
      self.size(1),
      " and ",
      mat2.size(0));
  TORCH_CHECK(
      self.scalar_type() == c10::kChar || (self.scalar_type() == c10::kByte && !claimed_device().is_cuda()),
      "Expected self dtype to be of type int8 but got ",
      self.dtype());
  TORCH_CHECK(mat2.scalar_type() == c10::kChar, "Expected mat2 dtype to be of type int8 but got ", mat2.dtype());
  return empty({self.size(0), mat2.size(1)}, c10::kInt);
}

// The out= argument is not resized: it must have the right size.
void write_fitting(const OutRule::Tensors& outs, const OutRule::Tensors& results) {
  for (size_t i = 0; i < outs.size(); ++i) {
    TORCH_CHECK(
        outs[i].scalar_type() == results[i].scalar_type(),
        "Expected result dtype to be ",
        results[i].scalar_type(),
        " but got ",
        outs[i].scalar_type());
    TORCH_CHECK(
        outs[i].sizes() == results[i].sizes(),
        "Expected result of size ",
        results[i].sizes(),
        " but got ",
        outs[i].sizes());
    TORCH_CHECK(outs[i].is_contiguous(), "Expected result to be contiguous.");
  }
}

// Only the CPU kernels check these.
void check_activations(const at::Tensor& self, const char* name) {
  TORCH_CHECK(self.dim() == 2, name, " : expect A to be 2D tensor.");
  if (!claimed_device().is_cpu()) {
    return;
  }
  TORCH_CHECK(
      self.scalar_type() == c10::kBFloat16 || self.scalar_type() == c10::kHalf || self.scalar_type() == c10::kFloat,
      name,
      " : expect A to be either 32-bit or 16-bit float tensor.");
  TORCH_CHECK(self.is_contiguous(), name, " : expect A to be contiguous.");
}

at::Tensor int8_mm(const at::Tensor& self, const at::Tensor& mat2, const at::Tensor& scales) {
  const char* const name = claimed_device().is_cpu() ? "_weight_int8pack_mm_cpu" : "_weight_int8pack_mm";
  check_activations(self, name);
  TORCH_CHECK(mat2.scalar_type() == c10::kChar, name, " : expect B to be int8 tensor.");
  TORCH_CHECK(mat2.is_contiguous(), name, " : expect B to be contiguous.");
  TORCH_CHECK(mat2.size(1) == self.size(1), name, " : expect B.size(1) == ", self.size(1));
  TORCH_CHECK(
      scales.dim() == 1 && scales.size(0) == mat2.size(0),
      name,
      " : expect scales to be 1d tensor with size ",
      mat2.size(0));
  return empty({self.size(0), mat2.size(0)}, self.scalar_type());
}

bool is_group_size(int64_t size) {
  return size == 32 || size == 64 || size == 128 || size == 256;
}

void check_scales_and_zeros(const at::Tensor& scales, int64_t rows, const char* name) {
  TORCH_CHECK(
      scales.dim() == 3 && scales.size(1) == rows && scales.size(2) == 2,
      name,
      ": expect qScaleAndZeros to be 3d tensor with sizes [:, ",
      rows,
      ", 2]");
}

// Tiles of 8 rows, the layout for a GPU's tensor cores.
at::Tensor pack_int4(const at::Tensor& self, int64_t inner_k_tiles) {
  TORCH_CHECK(self.dim() == 2, "expected a matrix of weights, got ", self.dim(), " dimensions");
  TORCH_CHECK(self.scalar_type() == c10::kByte, "expected weights of uint8, got ", self.scalar_type());
  TORCH_CHECK(
      inner_k_tiles == 2 || inner_k_tiles == 4 || inner_k_tiles == 8,
      "innerKTiles must be 2, 4 or 8, got ",
      inner_k_tiles);
  TORCH_CHECK(self.is_contiguous(), "expected contiguous weights");
  const int64_t columns = self.size(1) * 2;
  TORCH_CHECK(columns % (inner_k_tiles * 16) == 0, "the number of columns must be a multiple of ", inner_k_tiles * 16);
  return empty({(self.size(0) + 7) / 8, columns / (inner_k_tiles * 16), 32, inner_k_tiles / 2}, c10::kInt);
}

at::Tensor int4_mm(const at::Tensor& self, const at::Tensor& mat2, int64_t group_size, const at::Tensor& scales) {
  constexpr const char* kName = "_weight_int4pack_mm";
  constexpr int64_t kTile = 8;
  TORCH_CHECK(self.dim() == 2, kName, ": expect A to be 2D tensor.");
  TORCH_CHECK(
      self.scalar_type() == c10::kBFloat16 || !claimed_device().is_cuda(),
      kName,
      ": expect A to be a bfloat16 tensor.");
  TORCH_CHECK(self.is_contiguous(), kName, ": expect A to be contiguous.");
  TORCH_CHECK(mat2.scalar_type() == c10::kInt && mat2.dim() == 4, kName, ": expect B to be a packed int32 tensor.");
  TORCH_CHECK(mat2.is_contiguous(), kName, ": expect B to be contiguous.");
  TORCH_CHECK(
      mat2.size(3) > 0 && mat2.size(1) == self.size(1) / (mat2.size(3) * 32),
      kName,
      ": expect B for ",
      self.size(1),
      " columns of A.");
  TORCH_CHECK(is_group_size(group_size), kName, ": expect the group size to be 32, 64, 128 or 256, got ", group_size);
  check_scales_and_zeros(scales, mat2.size(0) * kTile, kName);
  return empty({self.size(0), mat2.size(0) * kTile}, self.scalar_type());
}

at::Tensor pack_int4_for_cpu(const at::Tensor& self) {
  constexpr const char* kName = "_convert_weight_to_int4pack_cpu";
  TORCH_CHECK(self.dim() == 2, kName, " : expect weight to be 2D tensor.");
  TORCH_CHECK(self.scalar_type() == c10::kInt, kName, " : expect weight to be kInt.");
  TORCH_CHECK(self.size(0) % 16 == 0, kName, " : expect N to be dividable by 16");
  TORCH_CHECK(self.size(1) % 2 == 0, kName, " : expect K to be dividable by 2");
  return empty({self.size(0), self.size(1) / 2}, c10::kByte);
}

at::Tensor int4_mm_for_cpu(
    const at::Tensor& self,
    const at::Tensor& mat2,
    int64_t group_size,
    const at::Tensor& scales) {
  constexpr const char* kName = "_weight_int4pack_mm_cpu";
  check_activations(self, kName);
  TORCH_CHECK(mat2.scalar_type() == c10::kByte, kName, " : expect B to be uint8 tensor.");
  TORCH_CHECK(mat2.is_contiguous(), kName, " : expect B to be contiguous.");
  TORCH_CHECK(mat2.size(1) == self.size(1) / 2, kName, " : expect B.size(1) to be K/2, got ", mat2.size(1));
  TORCH_CHECK(is_group_size(group_size), kName, ": expect qGroupSize to be 32, 64, 128 or 256, got ", group_size);
  check_scales_and_zeros(scales, mat2.size(0), kName);
  return empty({self.size(0), mat2.size(0)}, self.scalar_type());
}

}  // namespace

KernelList quantization_kernels() {
  namespace ops = at::_ops;
  return {
      kernel<ops::fake_quantize_per_tensor_affine_cachemask, &per_tensor>(),
      kernel<ops::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams, &per_tensor_by_tensors>(),
      kernel<ops::fake_quantize_per_channel_affine_cachemask, &per_channel>(),
      kernel<ops::_fake_quantize_learnable_per_tensor_affine, &learnable_per_tensor>(),
      kernel<ops::_fake_quantize_learnable_per_tensor_affine_backward, &learnable_per_tensor_backward>(),
      kernel<ops::_fake_quantize_learnable_per_channel_affine, &learnable_per_channel>(),
      kernel<ops::_fake_quantize_learnable_per_channel_affine_backward, &learnable_per_channel_backward>(),
      kernel<ops::_fused_moving_avg_obs_fq_helper, &observed>(),
      kernel<ops::_int_mm, &int_mm>(),
      out_form<ops::_int_mm_out, ops::_int_mm>(&write_fitting),
      kernel<ops::_weight_int8pack_mm, &int8_mm>(),
      kernel<ops::_convert_weight_to_int4pack, &pack_int4>(),
      kernel<ops::_weight_int4pack_mm, &int4_mm>(),
      kernel<ops::_convert_weight_to_int4pack_for_cpu, &pack_int4_for_cpu>(),
      kernel<ops::_weight_int4pack_mm_for_cpu, &int4_mm_for_cpu>(),
  };
}

}  // namespace torchfake
