// Temporary memory of matrix products: cuBLAS workspaces, and copies of matrices that it cannot read.
#include <torchfake/rules/side_memory.h>

#include <algorithm>

namespace torchfake::side_memory {

namespace {

// cuBLAS reads contiguous rows or columns, separated by a leading dimension.
bool is_readable(const c10::TensorImpl& matrix) {
  const int64_t last = matrix.dim() - 1;
  const auto fits = [&](int64_t fast, int64_t slow) {
    return matrix.stride(fast) == 1 && matrix.stride(slow) >= std::max<int64_t>(1, matrix.size(fast));
  };
  return last < 1 || fits(last, last - 1) || fits(last - 1, last);
}

void copy_if_unreadable(const Call& call, size_t arg, Requests& requests) {
  const c10::TensorImpl* matrix = tensor_at(call, arg);
  if (matrix != nullptr && matrix->numel() > 0 && !is_readable(*matrix)) {
    requests.take(bytes_of(*matrix));
  }
}

template <size_t kFirst>
void product(const Call& call, Requests& requests) {
  copy_if_unreadable(call, kFirst, requests);
  copy_if_unreadable(call, kFirst + 1, requests);
}

constexpr Row kRows[] = {
    {"aten::mm", {product<0>, memory::Workspace::kBlas}},
    // According to their source these copy too, but the recording of a mixture of experts, whose gradients have such a
    // layout, shows no copies.
    {"aten::bmm", {nullptr, memory::Workspace::kBlas}},
    {"aten::baddbmm", {nullptr, memory::Workspace::kBlas}},
    {"aten::mv", {nullptr, memory::Workspace::kBlas}},
    {"aten::dot", {nullptr, memory::Workspace::kBlas}},
    {"aten::addmm", {product<1>, memory::Workspace::kBlasLt}},
    {"aten::linear", {nullptr, memory::Workspace::kBlasLt}},
};

}  // namespace

c10::ArrayRef<Row> product_rows() {
  return kRows;
}

}  // namespace torchfake::side_memory
