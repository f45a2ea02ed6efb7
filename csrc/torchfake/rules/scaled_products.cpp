// Matrix products with an explicit result dtype, and products of scaled float8 and float4 matrices.
#include <ATen/cpu/Utils.h>
#include <ATen/native/Resize.h>

#include <torchfake/core/compat.h>
#include <torchfake/core/kernel_environment.h>
#include <torchfake/rules/forms.h>
#include <torchfake/rules/results.h>
#include <torchfake/rules/scaling_recipes.h>

namespace torchfake {

namespace {

// A GPU's library accumulates in float and can return the result in float.
void check_out_dtype(const at::Tensor& first, const at::Tensor& second, c10::ScalarType out_dtype) {
  TORCH_CHECK(first.scalar_type() == second.scalar_type(), "input dtypes must be the same");
  const bool is_half = first.scalar_type() == c10::kHalf || first.scalar_type() == c10::kBFloat16;
  TORCH_CHECK(
      out_dtype == first.scalar_type() || (out_dtype == c10::kFloat && is_half),
      "out_dtype must be the same as input dtype or fp32 for fp16/bf16 inputs");
}

void check_shapes(const at::Tensor& mat1, const at::Tensor& mat2) {
  TORCH_CHECK(
      mat1.size(1) == mat2.size(0),
      "mat1 and mat2 shapes cannot be multiplied (",
      mat1.size(0),
      'x',
      mat1.size(1),
      " and ",
      mat2.size(0),
      'x',
      mat2.size(1),
      ')');
}

at::Tensor mm(const at::Tensor& self, const at::Tensor& mat2, c10::ScalarType out_dtype) {
  TORCH_CHECK(self.dim() == 2, "self must be a matrix, got ", self.dim(), "-D tensor");
  TORCH_CHECK(mat2.dim() == 2, "mat2 must be a matrix, got ", mat2.dim(), "-D tensor");
  check_shapes(self, mat2);
  check_out_dtype(self, mat2, out_dtype);
  return empty({self.size(0), mat2.size(1)}, out_dtype);
}

at::Tensor bmm(const at::Tensor& self, const at::Tensor& mat2, c10::ScalarType out_dtype) {
  TORCH_CHECK(self.dim() == 3, "batch1 must be a 3D tensor");
  TORCH_CHECK(mat2.dim() == 3, "batch2 must be a 3D tensor");
  TORCH_CHECK(
      mat2.size(0) == self.size(0) && mat2.size(1) == self.size(2),
      "Expected size for first two dimensions of batch2 tensor to be: [",
      self.size(0),
      ", ",
      self.size(2),
      "] but got: [",
      mat2.size(0),
      ", ",
      mat2.size(1),
      "].");
  check_out_dtype(self, mat2, out_dtype);
  return empty({self.size(0), self.size(1), mat2.size(2)}, out_dtype);
}

// The tensor added has the dtype of the factors or of the result.
template <at::Tensor (*kProduct)(const at::Tensor&, const at::Tensor&, c10::ScalarType)>
at::Tensor added(const at::Tensor& self, const at::Tensor& first, const at::Tensor& second, c10::ScalarType out_dtype) {
  TORCH_CHECK(
      self.scalar_type() == first.scalar_type() || self.scalar_type() == out_dtype,
      "self dtype must match either out_dtype or the dtype of the factors");
  at::Tensor result = kProduct(first, second, out_dtype);
  self.expand(result.sizes());
  return result;
}

// How a matrix is scaled: as a whole, by rows, or by blocks.
enum class Scaling : uint8_t { kWhole, kRows, kBlocks1x128, kBlocks128x128, kBlocks1x32, kBlocks1x16 };

int64_t blocks(int64_t size, int64_t block) {
  return (size + block - 1) / block;
}

int64_t rounded_up(int64_t size, int64_t multiple) {
  return blocks(size, multiple) * multiple;
}

// The stride of a dimension with one element is irrelevant.
bool has_dim(const at::Tensor& scale, int64_t dim, int64_t size, int64_t stride) {
  return scale.size(dim) == size && (size <= 1 || scale.stride(dim) == stride);
}

bool is_float4(const at::Tensor& tensor) {
  return tensor.scalar_type() == c10::ScalarType::Float4_e2m1fn_x2;
}

// Block scales are padded to tiles of 128 rows and 4 blocks.
bool has_tiles(const at::Tensor& matrix, const at::Tensor& scale, int64_t block) {
  const int64_t columns = matrix.size(1) * (is_float4(matrix) ? 2 : 1);
  return scale.numel() == rounded_up(matrix.size(0), 128) * rounded_up(blocks(columns, block), 4) &&
      scale.is_contiguous();
}

bool fits(Scaling scaling, const at::Tensor& matrix, const at::Tensor& scale) {
  const bool is_float8 = c10::isFloat8Type(matrix.scalar_type());
  const bool by_floats = is_float8 && scale.scalar_type() == c10::kFloat;
  const int64_t rows = matrix.size(0);
  const int64_t columns = blocks(matrix.size(1), 128);
  switch (scaling) {
    case Scaling::kWhole:
      return is_float8 && scale.numel() == 1 && (by_floats || claimed_device().is_cpu());
    case Scaling::kRows:
      return by_floats && scale.dim() == 2 && scale.size(0) == rows && scale.size(1) == 1 && scale.is_contiguous();
    case Scaling::kBlocks1x128:
      return by_floats && scale.dim() == 2 && has_dim(scale, 0, rows, 1) && has_dim(scale, 1, columns, rows);
    case Scaling::kBlocks128x128:
      return by_floats && scale.dim() == 2 && has_dim(scale, 0, blocks(rows, 128), columns) &&
          has_dim(scale, 1, columns, 1);
    case Scaling::kBlocks1x32:
      return (is_float8 || is_float4(matrix)) && scale.scalar_type() == c10::kFloat8_e8m0fnu &&
          has_tiles(matrix, scale, 32);
    case Scaling::kBlocks1x16:
      return is_float4(matrix) && scale.scalar_type() == c10::kFloat8_e4m3fn && has_tiles(matrix, scale, 16);
  }
  return false;
}

bool is_scaled(
    Scaling first,
    Scaling second,
    const at::Tensor& mat1,
    const at::Tensor& mat2,
    const at::Tensor& scale_a,
    const at::Tensor& scale_b) {
  const bool in_tiles = second == Scaling::kBlocks1x32 || second == Scaling::kBlocks1x16;
  return fits(first, mat1, scale_a) && fits(second, mat2.t(), in_tiles || scale_b.dim() > 2 ? scale_b : scale_b.t());
}

bool has_scaling(const at::Tensor& mat1, const at::Tensor& mat2, const at::Tensor& scale_a, const at::Tensor& scale_b) {
  const auto scaled = [&](Scaling first, Scaling second) {
    return is_scaled(first, second, mat1, mat2, scale_a, scale_b);
  };
  if (scaled(Scaling::kWhole, Scaling::kWhole) || scaled(Scaling::kRows, Scaling::kRows)) {
    return true;
  }
  return !claimed_device().is_cpu() &&
      (scaled(Scaling::kBlocks128x128, Scaling::kBlocks1x128) ||
       scaled(Scaling::kBlocks1x128, Scaling::kBlocks128x128) || scaled(Scaling::kBlocks1x128, Scaling::kBlocks1x128) ||
       scaled(Scaling::kBlocks1x32, Scaling::kBlocks1x32) || scaled(Scaling::kBlocks1x16, Scaling::kBlocks1x16));
}

void check_scaling(
    const at::Tensor& mat1,
    const at::Tensor& mat2,
    const at::Tensor& scale_a,
    const at::Tensor& scale_b) {
  if (has_scaling(mat1, mat2, scale_a, scale_b)) {
    return;
  }
  std::ostringstream message;
  message
      << "Invalid scaling configuration: matrices of float8 are scaled by one float each, or by rows with floats of "
         "sizes ["
      << mat1.size(0) << ", 1] and [1, " << mat2.size(1) << "], or by blocks. Got " << mat1.scalar_type()
      << " scaled by " << scale_a.scalar_type() << " of sizes " << scale_a.sizes() << " and strides "
      << scale_a.strides() << ", " << mat2.scalar_type() << " scaled by " << scale_b.scalar_type() << " of sizes "
      << scale_b.sizes() << " and strides " << scale_b.strides() << '.';
  TORCH_CHECK_VALUE(!claimed_device().is_cpu(), message.str());
  TORCH_CHECK(false, message.str());
}

// Whether this CPU has the instructions for which oneDNN computes such a product. Its checks differ.
bool is_for_onednn(
    const at::Tensor& mat1,
    const at::Tensor& mat2,
    const at::Tensor& scale_a,
    const at::Tensor& scale_b) {
  static const auto capabilities = at::cpu::get_cpu_capabilities();
  const auto found = capabilities.find(mat1.scalar_type() == mat2.scalar_type() ? "amx_int8" : "amx_fp16");
  return claimed_device().is_cpu() && scale_a.numel() == 1 && scale_b.numel() == 1 && found != capabilities.end() &&
      found->second.toBool() && KernelEnvironment::enabled(KernelEnvironment::kMkldnn);
}

void check_float8(const at::Tensor& matrix, const char* name) {
  TORCH_CHECK(
      c10::isFloat8Type(matrix.scalar_type()), "Expected ", name, " to be Float8 matrix got ", matrix.scalar_type());
}

bool is_column_major(const at::Tensor& matrix) {
  if (matrix.is_non_overlapping_and_dense()) {
    return !matrix.is_contiguous();
  }
  return matrix.stride(0) == 1 && matrix.stride(1) >= std::max<int64_t>(1, matrix.size(0));
}

// The scalings for which the claimed card has kernels.
void check_capability(const at::Tensor& mat1, const at::Tensor& scale_a, const at::Tensor& scale_b) {
  const int64_t capability = KernelEnvironment::cuda_capability();
  TORCH_CHECK_NOT_IMPLEMENTED(
      capability >= 89,
      "torch._scaled_mm is only supported on CUDA devices with compute capability >= 9.0 or 8.9, or ROCm MI300+");
  const auto is_by_floats_in_blocks = [](const at::Tensor& scale, int64_t rows) {
    return scale.scalar_type() == c10::kFloat && scale.dim() == 2 && scale.numel() > 1 && scale.numel() != rows;
  };
  TORCH_CHECK_NOT_IMPLEMENTED(
      capability / 10 == 9 || !(is_by_floats_in_blocks(scale_a, mat1.size(0)) && scale_b.numel() > 1),
      "DeepSeek style (1x128, 128x128) scaling only supported in CUDA for SM90");
  TORCH_CHECK_NOT_IMPLEMENTED(
      capability >= 100 || !is_float4(mat1), "MXFP4 scaling only supported in CUDA for B200/B300");
}

// Requirements of the GPU libraries.
void check_for_gpu(const at::Tensor& mat1, const at::Tensor& mat2, const at::Tensor& bias, c10::ScalarType out_dtype) {
  TORCH_CHECK(
      mat1.size(1) % 16 == 0,
      "Expected trailing dimension of mat1 to be divisible by 16 but got mat1 shape: (",
      mat1.size(0),
      'x',
      mat1.size(1),
      ").");
  TORCH_CHECK(
      mat2.size(0) % 16 == 0 && mat2.size(1) % 16 == 0,
      "mat2 shape (",
      mat2.size(0),
      'x',
      mat2.size(1),
      ") must be divisible by 16");
  TORCH_CHECK_VALUE(
      mat1.scalar_type() != c10::kFloat8_e5m2 || mat2.scalar_type() != c10::kFloat8_e5m2,
      "Multiplication of two Float8_e5m2 matrices is not supported");
  if (bias.defined()) {
    TORCH_CHECK(out_dtype != c10::kFloat, "Bias is not supported when out_dtype is set to Float32");
    TORCH_CHECK(
        bias.scalar_type() == c10::kBFloat16 || bias.scalar_type() == c10::kHalf,
        "Bias must be BFloat16 or Half, but got ",
        bias.scalar_type());
    TORCH_CHECK(
        (out_dtype != c10::kBFloat16 && out_dtype != c10::kHalf) || bias.scalar_type() == out_dtype,
        "Bias must be ",
        out_dtype,
        " to compute ",
        out_dtype,
        " output, but got ",
        bias.scalar_type());
  }
  TORCH_CHECK(c10::isFloatingType(out_dtype), "out_dtype must be a floating point type, but got ", out_dtype);
  const bool is_empty = mat1.numel() == 0 || mat2.numel() == 0;
  TORCH_CHECK(
      is_empty || (!is_column_major(mat1) && is_column_major(mat2)),
      "Only multiplication of row-major and column-major matrices is supported by cuBLASLt");
}

void check_scaled_mm(
    const at::Tensor& self,
    const at::Tensor& mat2,
    const at::Tensor& scale_a,
    const at::Tensor& scale_b,
    const at::Tensor& bias,
    const at::Tensor& scale_result,
    c10::ScalarType out_dtype) {
  if (claimed_device().is_cuda()) {
    check_capability(self, scale_a, scale_b);
  }
  TORCH_CHECK(self.dim() == 2, "mat1 must be a matrix");
  TORCH_CHECK(mat2.dim() == 2, "mat2 must be a matrix");
  check_shapes(self, mat2);
  if (is_for_onednn(self, mat2, scale_a, scale_b)) {
    check_float8(self, "mat1");
    check_float8(mat2, "mat2");
  } else {
    check_scaling(self, mat2, scale_a, scale_b);
  }
  TORCH_CHECK(
      !scale_result.defined() || (scale_result.numel() == 1 && scale_result.scalar_type() == c10::kFloat),
      "scale_result must be a float scalar");
  TORCH_CHECK(
      !bias.defined() || bias.numel() == mat2.size(1), "Bias must be size ", mat2.size(1), " but got ", bias.numel());
  if (!claimed_device().is_cpu()) {
    check_for_gpu(self, mat2, bias, out_dtype);
  }
}

at::Tensor scaled_mm(
    const at::Tensor& self,
    const at::Tensor& mat2,
    const at::Tensor& scale_a,
    const at::Tensor& scale_b,
    const OptTensor& bias,
    const OptTensor& scale_result,
    std::optional<c10::ScalarType> out_dtype) {
  const c10::ScalarType dtype = out_dtype.value_or(self.scalar_type());
  check_scaled_mm(self, mat2, scale_a, scale_b, value(bias), value(scale_result), dtype);
  return empty({self.size(0), mat2.size(1)}, dtype);
}

at::Tensor& scaled_mm_out(
    const at::Tensor& self,
    const at::Tensor& mat2,
    const at::Tensor& scale_a,
    const at::Tensor& scale_b,
    const OptTensor& bias,
    const OptTensor& scale_result,
    std::optional<c10::ScalarType> out_dtype,
    bool /*use_fast_accum*/,
    at::Tensor& out) {
  check_scaled_mm(self, mat2, scale_a, scale_b, value(bias), value(scale_result), out.scalar_type());
  TORCH_CHECK(!out_dtype || *out_dtype == out.scalar_type(), "out_dtype must match output matrix type");
  at::native::resize_output(out, {self.size(0), mat2.size(1)});
  return out;
}

void check_contraction(const at::Tensor& self, const at::Tensor& mat2, at::IntArrayRef dims) {
  TORCH_CHECK_VALUE(self.dim() == 2, "mat_a must be a matrix");
  TORCH_CHECK_VALUE(mat2.dim() == 2, "mat_b must be a matrix");
  TORCH_CHECK_VALUE(dims.empty() || dims.size() == 2, "contraction_dim must have exactly 2 elements");
  TORCH_CHECK_VALUE(
      self.size(dims.empty() ? 1 : dims[0]) == mat2.size(dims.empty() ? 0 : dims[1]),
      "mat_a and mat_b shapes cannot be multiplied (",
      self.size(0),
      'x',
      self.size(1),
      " and ",
      mat2.size(0),
      'x',
      mat2.size(1),
      ')');
}

void check_rows(const at::Tensor& scale, int64_t rows, const char* name) {
  TORCH_CHECK_VALUE(
      scale.numel() == rows && scale.scalar_type() == c10::kFloat, name, " must have ", rows, " Float elements");
}

void check_scaled_mm_v2(
    const at::Tensor& self,
    const at::Tensor& mat2,
    const ScalingRecipe& a,
    const ScalingRecipe& b,
    const at::Tensor& bias,
    c10::ScalarType out_dtype,
    at::IntArrayRef contraction_dim) {
  if (claimed_device().is_cuda() && !a.scales.empty() && !b.scales.empty()) {
    check_capability(self, a.scales.front(), b.scales.front());
  }
  check_contraction(self, mat2, contraction_dim);
  TORCH_CHECK_VALUE(
      !bias.defined() || bias.numel() == mat2.size(1), "Bias must be size ", mat2.size(1), " but got ", bias.numel());
  TORCH_CHECK_VALUE(
      go_together(a, b, /*on_gpu=*/!claimed_device().is_cpu()),
      "Invalid scaling configuration: no kernel takes these dtypes with these recipes and scales.");
  if (is_by_rows(a)) {
    check_rows(a.scales.front(), self.size(0), "scale_a");
    check_rows(b.scales.front(), mat2.size(1), "scale_b");
  }
  if (!claimed_device().is_cpu()) {
    check_for_gpu(self, mat2, bias, out_dtype);
  }
}

at::Tensor scaled_mm_v2(
    const at::Tensor& self,
    const at::Tensor& mat2,
    compat::ScaleList scale_a,
    at::IntArrayRef recipe_a,
    at::IntArrayRef /*swizzle_a*/,
    compat::ScaleList scale_b,
    at::IntArrayRef recipe_b,
    at::IntArrayRef /*swizzle_b*/,
    const OptTensor& bias,
    std::optional<c10::ScalarType> out_dtype,
    at::IntArrayRef contraction_dim) {
  const c10::ScalarType dtype = out_dtype.value_or(self.scalar_type());
  check_scaled_mm_v2(
      self,
      mat2,
      {self.scalar_type(), recipe_a, compat::tensors(scale_a)},
      {mat2.scalar_type(), recipe_b, compat::tensors(scale_b)},
      value(bias),
      dtype,
      contraction_dim);
  return empty({self.size(0), mat2.size(1)}, dtype);
}

at::Tensor& scaled_mm_v2_out(
    const at::Tensor& self,
    const at::Tensor& mat2,
    compat::ScaleList scale_a,
    at::IntArrayRef recipe_a,
    at::IntArrayRef /*swizzle_a*/,
    compat::ScaleList scale_b,
    at::IntArrayRef recipe_b,
    at::IntArrayRef /*swizzle_b*/,
    const OptTensor& bias,
    std::optional<c10::ScalarType> out_dtype,
    at::IntArrayRef contraction_dim,
    bool /*use_fast_accum*/,
    at::Tensor& out) {
  check_scaled_mm_v2(
      self,
      mat2,
      {self.scalar_type(), recipe_a, compat::tensors(scale_a)},
      {mat2.scalar_type(), recipe_b, compat::tensors(scale_b)},
      value(bias),
      out.scalar_type(),
      contraction_dim);
  TORCH_CHECK_VALUE(!out_dtype || *out_dtype == out.scalar_type(), "out_dtype must match output matrix type");
  at::native::resize_output(out, {self.size(0), mat2.size(1)});
  return out;
}

void write_of_dtype(const OutRule::Tensors& outs, const OutRule::Tensors& results) {
  TORCH_CHECK(
      outs[0].scalar_type() == results[0].scalar_type(),
      "out_dtype must be the same as the dtype of the provided out tensor");
  write_contiguous(outs, results);
}

// Only mm does not resize its out= argument.
void write_fitting(const OutRule::Tensors& outs, const OutRule::Tensors& results) {
  TORCH_CHECK(
      outs[0].sizes() == results[0].sizes(), "expected out of size ", results[0].sizes(), ", got ", outs[0].sizes());
  write_of_dtype(outs, results);
}

}  // namespace

KernelList scaled_product_kernels() {
  namespace ops = at::_ops;
  return {
      kernel<ops::mm_dtype, &mm>(),
      out_form<ops::mm_dtype_out, ops::mm_dtype>(&write_fitting),
      kernel<ops::bmm_dtype, &bmm>(),
      out_form<ops::bmm_dtype_out, ops::bmm_dtype>(&write_of_dtype),
      kernel<ops::addmm_dtype, &added<&mm>>(),
      out_form<ops::addmm_dtype_out, ops::addmm_dtype>(&write_of_dtype),
      kernel<ops::baddbmm_dtype, &added<&bmm>>(),
      out_form<ops::baddbmm_dtype_out, ops::baddbmm_dtype>(&write_of_dtype),
      kernel<ops::_scaled_mm, &scaled_mm>(),
      kernel<ops::_scaled_mm_out, &scaled_mm_out>(),
      kernel<ops::_scaled_mm_v2, &scaled_mm_v2>(),
      kernel<ops::_scaled_mm_v2_out, &scaled_mm_v2_out>(),
  };
}

}  // namespace torchfake
