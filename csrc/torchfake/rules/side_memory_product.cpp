// Temporary memory of matrix products and transforms: cuBLAS workspaces, and copies that the libraries need.
#include <torchfake/rules/side_memory.h>

#include <algorithm>
#include <utility>

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

// As a product of rows that are extended by their squared norms and by ones.
void euclidean_distance(const Call& call, Requests& requests) {
  const c10::TensorImpl* first = tensor_at(call, 0);
  const c10::TensorImpl* second = tensor_at(call, 1);
  if (first == nullptr || second == nullptr || first->dim() < 2 || second->dim() < 2 || first->numel() == 0 ||
      second->numel() == 0) {
    return;
  }
  const size_t norms_of_first = bytes_of(*first) / static_cast<size_t>(first->size(first->dim() - 1));
  const size_t norms_of_second = bytes_of(*second) / static_cast<size_t>(second->size(second->dim() - 1));
  const auto norms_and_ones = [&](const c10::TensorImpl& rows, size_t norms) {
    const uint32_t squares = requests.take(bytes_of(rows));
    const uint32_t sums = requests.take(norms);
    requests.give_back(squares);
    return std::pair(sums, requests.take(norms));
  };
  const auto [first_norms, first_ones] = norms_and_ones(*first, norms_of_first);
  const auto [second_norms, second_ones] = norms_and_ones(*second, norms_of_second);
  const uint32_t scaled = requests.take(bytes_of(*first));
  const uint32_t left = requests.take(bytes_of(*first) + 2 * norms_of_first);
  for (const uint32_t taken : {first_ones, first_norms, scaled}) {
    requests.give_back(taken);
  }
  const uint32_t right = requests.take(bytes_of(*second) + 2 * norms_of_second);
  requests.give_back(second_norms);
  requests.give_back(second_ones);
  requests.output(0);
  requests.give_back(right);
  requests.give_back(left);
}

// The transform back to real numbers overwrites its input, and is given a copy.
void complex_to_real(const Call& call, Requests& requests) {
  if (const c10::TensorImpl* input = tensor_at(call, 0)) {
    requests.output(0);
    requests.take(bytes_of(*input));
  }
}

constexpr Row kRows[] = {
    {"aten::_euclidean_dist", {euclidean_distance, memory::Workspace::kBlas}},
    {"aten::_fft_c2r", {complex_to_real}},
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
