// Linear algebra: results that lie in columns, as the libraries leave them, and bits that a kernel sets at its end.
#include <ATen/EmptyTensor.h>
#include <ATen/native/LinearAlgebraUtils.h>
#include <ATen/ops/_linalg_svd_meta_dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_lu_solve_meta_dispatch.h>

#include <torchfake/rules/kernels.h>

namespace torchfake {

namespace {

at::Tensor columns(c10::IntArrayRef sizes, c10::ScalarType dtype) {
  const auto strides = at::native::batched_matrix_contiguous_strides(sizes, /*f_contig=*/true);
  return at::detail::empty_strided_meta(sizes, strides, dtype);
}

std::tuple<at::Tensor, at::Tensor> linalg_eig(const at::Tensor& self) {
  at::native::squareCheckInputs(self, "linalg.eig");
  const c10::ScalarType dtype = c10::toComplexType(self.scalar_type());
  const c10::IntArrayRef sizes = self.sizes();
  return {at::detail::empty_meta(sizes.slice(0, sizes.size() - 1), dtype), columns(sizes, dtype)};
}

std::tuple<at::Tensor, at::Tensor> geqrf(const at::Tensor& self) {
  TORCH_CHECK(self.dim() >= 2, "torch.geqrf: input must have at least 2 dimensions.");
  std::vector<int64_t> factors(self.sizes().begin(), self.sizes().end() - 1);
  factors.back() = std::min(self.size(-2), self.size(-1));
  return {columns(self.sizes(), self.scalar_type()), at::detail::empty_meta(factors, self.scalar_type())};
}

// A GPU's library has the right singular vectors in rows.
std::tuple<at::Tensor, at::Tensor, at::Tensor> linalg_svd(
    const at::Tensor& self,
    bool full_matrices,
    bool compute_uv,
    std::optional<c10::string_view> driver) {
  auto [u, s, vh] = at::meta::_linalg_svd(self, full_matrices, compute_uv, driver);
  if (claimed_device().is_cuda()) {
    vh = at::detail::empty_meta(vh.sizes(), vh.scalar_type());
  }
  return {u, s, vh};
}

// X A = B is solved as the transposed system; the result is conjugated by its bit.
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
  conjugate_if_transposed(out, left);
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
  }
  return out;
}

// Resizes what it adds to: a vector becomes the matrix that it is broadcast to.
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

}  // namespace

KernelList linear_algebra_kernels() {
  return {
      native_kernel<decltype(linalg_eig), &linalg_eig>("aten::linalg_eig"),
      native_kernel<decltype(geqrf), &geqrf>("aten::geqrf"),
      native_kernel<decltype(linalg_svd), &linalg_svd>("aten::_linalg_svd"),
      native_kernel<decltype(linalg_lu_solve), &linalg_lu_solve>("aten::linalg_lu_solve"),
      native_kernel<decltype(linalg_lu_solve_out), &linalg_lu_solve_out>("aten::linalg_lu_solve.out"),
      native_kernel<decltype(addbmm), &addbmm>("aten::addbmm"),
      native_kernel<decltype(addbmm_), &addbmm_>("aten::addbmm_"),
      native_kernel<decltype(addbmm_out), &addbmm_out>("aten::addbmm.out"),
  };
}

}  // namespace torchfake
