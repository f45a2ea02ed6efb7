// Linear algebra without a structured kernel: results lie column by column, as LAPACK leaves them.
#include <ATen/native/LinearAlgebraUtils.h>

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
  at::native::squareCheckInputs(self, "cholesky");
  require_floating_or_complex(self, "cholesky");
  return self.numel() == 0 ? contiguous_like(self) : column_major_like(self);
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
  require_floating_or_complex(self, "geqrf");
  std::vector<int64_t> tau = self.sizes().slice(0, self.dim() - 2).vec();
  tau.push_back(std::min(self.size(-1), self.size(-2)));
  return {column_major_like(self), empty(tau, self.scalar_type())};
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
  at::native::checkFloatingOrComplex(self, "linalg.eig");
  const c10::ScalarType dtype = c10::toComplexType(self.scalar_type());
  return {empty(without_last(self), dtype), column_major(self.sizes(), dtype)};
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

at::Tensor solve_triangular(const at::Tensor& self, const at::Tensor& other, bool /*upper*/, bool left) {
  at::native::checkInputsSolver(self, other, left, "linalg.solve_triangular");
  TORCH_CHECK(
      self.scalar_type() == other.scalar_type(),
      "linalg.solve_triangular: Expected A and B to have the same dtype, but found A of type ",
      self.scalar_type(),
      " and B of type ",
      other.scalar_type(),
      " instead");
  const std::vector<int64_t> sizes = std::get<0>(at::native::_linalg_broadcast_batch_dims(other, self));
  return column_major(sizes, other.scalar_type());
}

}  // namespace

KernelList linalg_kernels() {
  namespace ops = at::_ops;
  return {
      kernel<ops::cholesky, &cholesky>(),
      kernel<ops::cholesky_inverse, &cholesky_inverse>(),
      out_form<ops::cholesky_inverse_out, ops::cholesky_inverse>(),
      kernel<ops::_cholesky_solve_helper, &cholesky_solve_helper>(),
      kernel<ops::geqrf, &geqrf>(),
      out_form<ops::geqrf_a, ops::geqrf>(),
      kernel<ops::linalg_householder_product, &householder_product>(),
      out_form<ops::linalg_householder_product_out, ops::linalg_householder_product>(),
      kernel<ops::ormqr, &ormqr>(),
      out_form<ops::ormqr_out, ops::ormqr>(),
      kernel<ops::linalg_solve_triangular, &solve_triangular>(),
      out_form<ops::linalg_solve_triangular_out, ops::linalg_solve_triangular>(),
      kernel<ops::linalg_eig, &eig>(),
      out_form<ops::linalg_eig_out, ops::linalg_eig>(),
      kernel<ops::_linalg_eigvals, &eigvals>(),
      out_form<ops::linalg_eigvals_out, ops::_linalg_eigvals>(),
      kernel<ops::linalg_matrix_exp, &matrix_exp>(),
  };
}

}  // namespace torchfake
