// Grouped matrix products, one matrix per group of rows: mixtures of experts.
#include <ATen/native/GroupedMMUtils.h>

#include <torchfake/rules/forms.h>
#include <torchfake/rules/results.h>

namespace torchfake {

namespace {

// Requires rows or columns to start at multiples of 16 bytes. Returns true for column-major matrices.
bool check_aligned(const at::Tensor& matrix) {
  constexpr int64_t kBytes = 16;
  const int64_t rows = matrix.stride(-2);
  const int64_t columns = matrix.stride(-1);
  const bool in_columns = rows == 1 && columns >= std::max<int64_t>(1, matrix.size(-2));
  TORCH_CHECK(
      in_columns || (columns == 1 && rows >= std::max<int64_t>(1, matrix.size(-1))),
      "Invalid strides/sizes, got ",
      matrix.strides(),
      " for strides and ",
      matrix.sizes(),
      " for sizes");
  TORCH_CHECK(
      (in_columns ? columns : rows) * static_cast<int64_t>(matrix.element_size()) % kBytes == 0,
      "strides should be multiple of 16 bytes");
  return in_columns;
}

void check_groups(const at::Tensor& self, const at::Tensor& mat2, const OptTensor& offs, const OptTensor& bias) {
  TORCH_CHECK(self.dim() == 2 || self.dim() == 3, "mat_a has to be 2 or 3d");
  TORCH_CHECK(mat2.dim() == 2 || mat2.dim() == 3, "mat_b has to be 2 or 3d");
  TORCH_CHECK(
      (self.dim() == 2 && mat2.dim() == 2) || self.size(-1) == mat2.size(-2),
      "contraction dimension of mat_a and mat_b must match");
  TORCH_CHECK(
      offs.has_value() == (self.dim() == 2 || mat2.dim() == 2),
      "Have to provide offsets if there is a 2d matrix, or no offset if both matrices are 3d");
  TORCH_CHECK(!offs || offs->dim() == 1, "offs has to be 1D");
  TORCH_CHECK(!offs || offs->scalar_type() == c10::kInt, "Offsets have to be int32");
  TORCH_CHECK(!bias, "Bias not supported yet");
}

void check_floats(const at::Tensor& matrix, const char* name) {
  TORCH_CHECK(
      matrix.scalar_type() == c10::kBFloat16 || matrix.scalar_type() == c10::kFloat ||
          matrix.scalar_type() == c10::kHalf,
      "Expected ",
      name,
      " to be Float32, BFloat16 or Float16 matrix, got ",
      matrix.scalar_type());
}

at::Tensor grouped_mm(
    const at::Tensor& self,
    const at::Tensor& mat2,
    const OptTensor& offs,
    const OptTensor& bias,
    std::optional<c10::ScalarType> out_dtype) {
  check_floats(self, "mat_a");
  check_floats(mat2, "mat_b");
  check_groups(self, mat2, offs, bias);
  check_aligned(self);
  check_aligned(mat2);
  TORCH_CHECK(
      out_dtype.value_or(self.scalar_type()) == self.scalar_type(),
      "Grouped gemm output dtype must match `mat_a` dtype");
  return at::native::create_grouped_gemm_output_tensor(self, mat2, offs, self.scalar_type());
}

// One scale per row of the left matrix and per column of the right one, for each group if the groups are slices of one
// 2D matrix.
void check_scale(const at::Tensor& scale, const at::Tensor& matrix, int64_t scaled_dim, int64_t groups) {
  TORCH_CHECK(
      scale.scalar_type() == c10::kFloat || scale.scalar_type() == c10::kFloat8_e8m0fnu,
      "scales must be float32, or float8_e8m0fnu for blocks, got ",
      scale.scalar_type());
  if (scale.scalar_type() != c10::kFloat) {
    return;
  }
  if (matrix.dim() == 2) {
    TORCH_CHECK(scale.dim() == 1, "scale must be a 1D tensor, but got ", scale.dim(), "D");
    TORCH_CHECK(scale.is_contiguous(), "scale must be contiguous");
    TORCH_CHECK(scale.size(0) == matrix.size(scaled_dim) * groups, "scale must have the same length as the matrix");
  } else {
    TORCH_CHECK(scale.dim() == 2, "scale must be a 2D tensor, but got ", scale.dim(), "D");
    TORCH_CHECK(scale.stride(1) == 1, "scale must be contiguous in the last dimension");
    TORCH_CHECK(scale.size(0) == matrix.size(0), "scale must have the same batch dimension as the matrix");
    TORCH_CHECK(scale.size(1) == matrix.size(1 + scaled_dim), "scale must have the same first dimension as the matrix");
  }
}

at::Tensor scaled_grouped_mm(
    const at::Tensor& self,
    const at::Tensor& mat2,
    const at::Tensor& scale_a,
    const at::Tensor& scale_b,
    const OptTensor& offs,
    const OptTensor& bias,
    const OptTensor& /*scale_result*/,
    std::optional<c10::ScalarType> out_dtype) {
  check_groups(self, mat2, offs, bias);
  TORCH_CHECK(
      self.scalar_type() == c10::kFloat8_e4m3fn && mat2.scalar_type() == c10::kFloat8_e4m3fn,
      "Expected matrices of Float8_e4m3fn, got ",
      self.scalar_type(),
      " and ",
      mat2.scalar_type());
  TORCH_CHECK(!check_aligned(self), "Expected mat1 to not be transposed");
  TORCH_CHECK(check_aligned(mat2), "Expected mat2 to be transposed");
  TORCH_CHECK(self.size(-1) % 16 == 0, "Expected trailing dimension of mat_a to be divisible by 16");
  TORCH_CHECK(mat2.size(-2) % 16 == 0 && mat2.size(-1) % 16 == 0, "Expected mat_b shape to be divisible by 16");
  const int64_t groups = self.dim() == 2 && mat2.dim() == 2 ? value(offs).size(0) : 1;
  check_scale(scale_a, self, 0, groups);
  check_scale(scale_b, mat2, 1, groups);
  TORCH_CHECK(
      out_dtype.value_or(c10::kBFloat16) == c10::kBFloat16,
      "Only bf16 high precision output types are supported for grouped gemm");
  return at::native::create_grouped_gemm_output_tensor(self, mat2, offs, c10::kBFloat16);
}

}  // namespace

KernelList grouped_product_kernels() {
  namespace ops = at::_ops;
  return {
      kernel<ops::_grouped_mm, &grouped_mm>(),
      kernel<ops::_scaled_grouped_mm, &scaled_grouped_mm>(),
  };
}

}  // namespace torchfake
