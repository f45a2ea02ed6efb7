// Linear algebra: column-major results, as LAPACK returns them, and bits that a kernel sets at its end.
#include <ATen/native/LinearAlgebraUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_linalg_svd_meta_dispatch.h>
#include <ATen/ops/addmv_meta_dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_lu_solve_meta_dispatch.h>
#include <absent_operators.h>

#include <torchfake/core/errors.h>
#include <torchfake/rules/forms.h>
#include <torchfake/rules/results.h>

namespace torchfake {

namespace {

using TwoTensors = std::tuple<at::Tensor, at::Tensor>;

at::Tensor column_major_like(const at::Tensor& tensor) {
  return column_major(tensor.sizes(), tensor.scalar_type());
}

std::vector<int64_t> without_last(const at::Tensor& tensor) {
  return tensor.sizes().slice(0, tensor.dim() - 1).vec();
}

at::Tensor cholesky(const at::Tensor& self) {
  if (self.numel() == 0) {
    return contiguous_like(self);  // regardless of its sizes: the real kernel returns early
  }
  at::native::squareCheckInputs(self, "cholesky");
  require_floating_or_complex(self, "cholesky");
  return column_major_like(self);
}

at::Tensor cholesky_inverse(const at::Tensor& self) {
  at::native::squareCheckInputs(self, "cholesky_inverse");
  return column_major_like(self);
}

at::Tensor cholesky_solve_helper(const at::Tensor& self) {
  return column_major_like(self);
}

TwoTensors geqrf(const at::Tensor& self) {
  TORCH_CHECK(self.dim() >= 2, "torch.geqrf: input must have at least 2 dimensions.");
  std::vector<int64_t> factors = without_last(self);
  factors.back() = std::min(self.size(-2), self.size(-1));
  return {column_major_like(self), empty(factors, self.scalar_type())};
}

void check_reflectors(const at::Tensor& input, const at::Tensor& tau, const char* name) {
  TORCH_CHECK(input.dim() >= 2, name, ": input must have at least 2 dimensions.");
  TORCH_CHECK(
      input.dim() - tau.dim() == 1,
      name,
      ": Expected tau to have one dimension less than input, but got tau.ndim equal to ",
      tau.dim(),
      " and input.ndim is equal to ",
      input.dim());
  TORCH_CHECK(
      tau.scalar_type() == input.scalar_type(),
      name,
      ": tau dtype ",
      tau.scalar_type(),
      " does not match input dtype ",
      input.scalar_type());
  TORCH_CHECK(
      input.sizes().slice(0, input.dim() - 2) == tau.sizes().slice(0, tau.dim() - 1),
      name,
      ": Expected batch dimensions of tau to be equal to input.shape[:-2], but got ",
      tau.sizes());
}

at::Tensor householder_product(const at::Tensor& input, const at::Tensor& tau) {
  check_reflectors(input, tau, "torch.linalg.householder_product");
  TORCH_CHECK(
      input.size(-2) >= input.size(-1),
      "torch.linalg.householder_product: input.shape[-2] must be greater than or equal to input.shape[-1]");
  TORCH_CHECK(
      input.size(-1) >= tau.size(-1),
      "torch.linalg.householder_product: input.shape[-1] must be greater than or equal to tau.shape[-1]");
  return column_major_like(input);
}

at::Tensor ormqr(const at::Tensor& self, const at::Tensor& tau, const at::Tensor& other, bool left) {
  check_reflectors(self, tau, "torch.ormqr");
  TORCH_CHECK(other.dim() >= 2, "torch.ormqr: other must have at least 2 dimensions.");
  const int64_t size = other.size(left ? -2 : -1);
  TORCH_CHECK(size >= tau.size(-1), "torch.ormqr: other.shape must be greater than or equal to tau.shape[-1]");
  TORCH_CHECK(size == self.size(-2), "torch.ormqr: other.shape must be equal to input.shape[-2]");
  TORCH_CHECK(
      tau.size(-1) <= self.size(-1), "torch.ormqr: tau.shape[-1] must be less than or equal to input.shape[-1]");
  return column_major_like(other);
}

TwoTensors eig(const at::Tensor& self) {
  at::native::squareCheckInputs(self, "linalg.eig");
  const c10::ScalarType dtype = c10::toComplexType(self.scalar_type());
  // A GPU's library also returns vectors in columns, which are then copied to the result.
  return {
      empty(without_last(self), dtype),
      claimed_device().is_cuda() ? empty(self.sizes(), dtype) : column_major(self.sizes(), dtype)};
}

at::Tensor eigvals(const at::Tensor& self) {
  at::native::squareCheckInputs(self, "linalg.eigvals");
  at::native::checkFloatingOrComplex(self, "linalg.eigvals");
  return empty(without_last(self), c10::toComplexType(self.scalar_type()));
}

at::Tensor matrix_exp(const at::Tensor& self) {
  at::native::squareCheckInputs(self, "linalg.matrix_exp");
  at::native::checkFloatingOrComplex(self, "linalg.matrix_exp");
  return self.numel() == 0 || self.size(-1) == 1 ? strided_like(self) : contiguous_like(self);
}

// The kernels copy B into the result, which has the dtype of A: autocast solves for products in bfloat16.
at::Tensor solve_triangular(const at::Tensor& self, const at::Tensor& other, bool /*upper*/, bool left) {
  at::native::checkInputsSolver(self, other, left, "linalg.solve_triangular");
  const c10::ScalarType dtype = self.scalar_type();
  TORCH_CHECK_NOT_IMPLEMENTED(
      dtype == c10::toRealValueType(dtype) ? dtype == c10::kFloat || dtype == c10::kDouble : dtype != c10::kComplexHalf,
      claimed_device().is_cuda() ? "\"triangular_solve_cublas\"" : "\"triangular_solve_cpu\"",
      " not implemented for '",
      dtype,
      "'");
  const auto [sizes, self_sizes] = at::native::_linalg_broadcast_batch_dims(other, self);
  // The library cannot conjugate without transposing. Such a matrix is not copied; the whole system is transposed.
  const bool transposes = self.is_conj() && self.expand(self_sizes).mT().is_contiguous();
  return transposes ? empty(sizes, dtype) : column_major(sizes, dtype);
}

// A GPU's library returns the right singular vectors as rows.
std::tuple<at::Tensor, at::Tensor, at::Tensor> linalg_svd(
    const at::Tensor& self,
    bool full_matrices,
    bool compute_uv,
    std::optional<c10::string_view> driver) {
  auto [u, s, vh] = at::meta::_linalg_svd(self, full_matrices, compute_uv, driver);
  if (claimed_device().is_cuda()) {
    vh = contiguous_like(vh);
  }
  return {u, s, vh};
}

// X A = B is solved as the transposed system; the result is conjugated lazily, by its conjugate bit.
void conjugate_if_transposed(const at::Tensor& result, bool left) {
  if (!left && result.is_complex() && result.numel() > 0) {
    result._set_conj(!result.is_conj());
  }
}

at::Tensor linalg_lu_solve(
    const at::Tensor& factors,
    const at::Tensor& pivots,
    const at::Tensor& right_side,
    bool left,
    bool adjoint) {
  at::Tensor result = at::meta::linalg_lu_solve(factors, pivots, right_side, left, adjoint);
  conjugate_if_transposed(result, left);
  return result;
}

at::Tensor& linalg_lu_solve_out(
    const at::Tensor& factors,
    const at::Tensor& pivots,
    const at::Tensor& right_side,
    bool left,
    bool adjoint,
    at::Tensor& out) {
  at::meta::linalg_lu_solve_outf(factors, pivots, right_side, left, adjoint, out);
  const at::Tensor wanted = at::meta::linalg_lu_solve(factors, pivots, right_side, left, adjoint);
  if (out.strides() == wanted.strides()) {  // otherwise the result is copied into it
    conjugate_if_transposed(out, left);
  }
  return out;
}

at::Tensor& addbmm_out(
    const at::Tensor& self,
    const at::Tensor& batch1,
    const at::Tensor& batch2,
    const at::Scalar& beta,
    const at::Scalar& alpha,
    at::Tensor& out) {
  TORCH_CHECK(batch1.dim() == 3, "batch1 must be a 3D tensor");
  TORCH_CHECK(batch2.dim() == 3, "batch2 must be a 3D tensor");
  TORCH_CHECK(
      batch1.size(0) == batch2.size(0),
      "batch1 and batch2 must have same number of batches, got ",
      batch1.size(0),
      " and ",
      batch2.size(0));
  TORCH_CHECK(
      batch1.size(2) == batch2.size(1),
      "Incompatible matrix sizes for bmm (",
      batch1.sizes(),
      " and ",
      batch2.sizes(),
      ")");
  const at::Tensor matrix = self.expand({batch1.size(1), batch2.size(2)});
  out.resize_(matrix.sizes());
  if (!out.is_same(self)) {
    out.copy_(matrix);
  }
  if (batch1.size(0) > 0) {
    out.addmm_(batch1.select(0, 0), batch2.select(0, 0), beta, alpha);
  } else if (beta.toComplexDouble() != 0.0) {
    out.mul_(beta);
  }
  return out;
}

// With an empty matrix there is no product: the result is the scaled `self`, with its sizes.
at::Tensor& addmv_out(
    const at::Tensor& self,
    const at::Tensor& matrix,
    const at::Tensor& vector,
    const at::Scalar& beta,
    const at::Scalar& alpha,
    at::Tensor& out) {
  at::meta::addmv_outf(self, matrix, vector, beta, alpha, out);
  if (matrix.numel() == 0 && beta.toComplexDouble() != 0.0) {
    at::native::resize_output(out, self.sizes());
  }
  return out;
}

at::Tensor addmv(
    const at::Tensor& self,
    const at::Tensor& matrix,
    const at::Tensor& vector,
    const at::Scalar& beta,
    const at::Scalar& alpha) {
  at::Tensor out = at::empty({0}, vector.options());
  return addmv_out(self, matrix, vector, beta, alpha, out);
}

// Resizes its input: a vector becomes the matrix that it is broadcast to.
at::Tensor& addbmm_(
    at::Tensor& self,
    const at::Tensor& batch1,
    const at::Tensor& batch2,
    const at::Scalar& beta,
    const at::Scalar& alpha) {
  return addbmm_out(self, batch1, batch2, beta, alpha, self);
}

at::Tensor addbmm(
    const at::Tensor& self,
    const at::Tensor& batch1,
    const at::Tensor& batch2,
    const at::Scalar& beta,
    const at::Scalar& alpha) {
  at::Tensor out = at::empty({0}, self.options());
  return addbmm_out(self, batch1, batch2, beta, alpha, out);
}

// The drivers for least squares, and what each of them computes.
struct Driver {
  bool finds_rank;
  bool finds_singular_values;  // returns residuals if the matrix has full rank
  bool leaves_residuals;
};

Driver driver_of(const std::optional<std::string_view>& name) {
  if (claimed_device().is_cuda()) {
    TORCH_CHECK(!name || *name == "gels", "torch.linalg.lstsq: `driver` other than `gels` is not supported on CUDA");
  }
  const std::string_view driver = name.value_or(claimed_device().is_cuda() ? "gels" : "gelsy");
  TORCH_CHECK(
      driver == "gels" || driver == "gelsy" || driver == "gelsd" || driver == "gelss",
      "torch.linalg.lstsq: parameter `driver` should be one of (gels, gelsy, gelsd, gelss)");
  const bool by_values = driver == "gelsd" || driver == "gelss";
  return {driver != "gels", by_values, driver != "gelsy"};
}

void check_least_squares(const at::Tensor& self, const at::Tensor& other, bool is_vector) {
  TORCH_CHECK(self.dim() >= 2, "torch.linalg.lstsq: input must have at least 2 dimensions.");
  TORCH_CHECK(other.dim() >= 1, "torch.linalg.lstsq: other must have at least 1 dimension.");
  TORCH_CHECK(
      self.scalar_type() == other.scalar_type(),
      "torch.linalg.lstsq: Expected input and other to have the same dtype, but got input's dtype ",
      self.scalar_type(),
      " and other's dtype ",
      other.scalar_type());
  TORCH_CHECK(
      self.dim() == other.dim() || is_vector,
      "torch.linalg.lstsq: input.dim() must be greater or equal to other.dim() and (input.dim() - other.dim()) <= 1");
  TORCH_CHECK(
      self.size(-2) == other.size(is_vector ? -1 : -2),
      "torch.linalg.lstsq: input.size(-2) should match other.size(",
      is_vector ? -1 : -2,
      ')');
  at::native::checkFloatingOrComplex(self, "torch.linalg.lstsq");
}

// LAPACK returns the solution in the memory of the right-hand side, which has at least as many rows as there are
// equations.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> least_squares(
    const at::Tensor& self,
    const at::Tensor& other,
    std::optional<double> /*rcond*/,
    std::optional<std::string_view> driver_name) {
  const bool is_vector = self.dim() >= 2 && other.dim() >= 1 && at::native::linalg_solve_is_vector_rhs(self, other);
  check_least_squares(self, other, is_vector);
  const Driver driver = driver_of(driver_name);
  const int64_t rows = self.size(-2);
  const int64_t columns = self.size(-1);
  const bool has_residuals = rows > columns && driver.leaves_residuals && self.numel() > 0;
  if (has_residuals && driver.finds_singular_values) {
    raise(
        ErrorKind::kDynamicOutputShape,
        "aten::linalg_lstsq",
        "this driver returns residuals if the matrix has full rank, which depends on its values. Use 'gels' or "
        "'gelsy'.");
  }
  const at::Tensor right = is_vector ? other.unsqueeze(-1) : other;
  const std::vector<int64_t> batch =
      at::infer_size(self.sizes().slice(0, self.dim() - 2), right.sizes().slice(0, right.dim() - 2));
  const auto sized = [&](std::initializer_list<int64_t> last) {
    std::vector<int64_t> sizes = batch;
    sizes.insert(sizes.end(), last);
    return sizes;
  };
  const c10::ScalarType real = c10::toRealValueType(self.scalar_type());
  const int64_t values = std::min(rows, columns);
  at::Tensor solution =
      column_major(sized({std::max(rows, columns), right.size(-1)}), self.scalar_type()).narrow(-2, 0, columns);
  return {
      is_vector ? solution.squeeze(-1) : solution,
      empty(has_residuals ? sized({right.size(-1)}) : std::vector<int64_t>{0}, real),
      empty(driver.finds_rank ? self.sizes().slice(0, self.dim() - 2).vec() : std::vector<int64_t>{0}, c10::kLong),
      empty(driver.finds_singular_values ? sized({values}) : std::vector<int64_t>{0}, real)};
}

}  // namespace

KernelList linalg_kernels() {
  namespace ops = compat::ops;
  return {
      kernel<ops::cholesky, &cholesky>(),
      out_form<ops::cholesky_out, ops::cholesky>(&write_contiguous),
      kernel<ops::cholesky_inverse, &cholesky_inverse>(),
      out_form<ops::cholesky_inverse_out, ops::cholesky_inverse>(),
      kernel<ops::_cholesky_solve_helper, &cholesky_solve_helper>(),
      kernel<ops::geqrf, &geqrf>(),
      out_form<ops::geqrf_a, ops::geqrf>(&write_columns),
      kernel<ops::linalg_householder_product, &householder_product>(),
      out_form<ops::linalg_householder_product_out, ops::linalg_householder_product>(&write_columns),
      kernel<ops::ormqr, &ormqr>(),
      out_form<ops::ormqr_out, ops::ormqr>(&write_columns),
      kernel<ops::linalg_solve_triangular, &solve_triangular>(),
      out_form<ops::linalg_solve_triangular_out, ops::linalg_solve_triangular>(),
      kernel<ops::linalg_eig, &eig>(),
      out_form<ops::linalg_eig_out, ops::linalg_eig>(&write_columns),
      kernel<ops::_linalg_eigvals, &eigvals>(),
      out_form<ops::linalg_eigvals_out, ops::_linalg_eigvals>(),
      kernel<ops::linalg_lstsq, &least_squares>(),
      out_form<ops::linalg_lstsq_out, ops::linalg_lstsq>(&write_columns),
      kernel<ops::linalg_matrix_exp, &matrix_exp>(),
      kernel<ops::_linalg_svd, &linalg_svd>(),
      kernel<ops::linalg_lu_solve, &linalg_lu_solve>(),
      kernel<ops::linalg_lu_solve_out, &linalg_lu_solve_out>(),
      kernel<ops::addmv, &addmv>(),
      kernel<ops::addmv_out, &addmv_out>(),
      kernel<ops::addbmm, &addbmm>(),
      kernel<ops::addbmm_, &addbmm_>(),
      kernel<ops::addbmm_out, &addbmm_out>(),
  };
}

}  // namespace torchfake
