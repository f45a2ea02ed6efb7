// Decompositions that read sizes as numbers, written over symbols. See Note [Sizes read as numbers].
#include <ATen/ExpandUtils.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/native_dropout.h>
#include <ATen/ops/zeros_like.h>

#include <torchfake/rules/composites.h>

#include <algorithm>

namespace torchfake {

namespace {

namespace ops = at::_ops;
using Sizes = SymbolicCall::Sizes;

// ---- Resampling -----------------------------------------------------------------------------------------------------

// floor(size * scale), computed in integers where the factor is a fraction that floating-point numbers represent exactly.
c10::SymInt scaled(const c10::SymInt& size, double scale) {
  if (const std::optional<int64_t> number = size.maybe_as_int()) {
    return static_cast<int64_t>(static_cast<double>(*number) * scale);
  }
  constexpr int64_t kMostParts = 64;
  for (int64_t parts = 1; parts <= kMostParts; parts *= 2) {
    const double times = scale * static_cast<double>(parts);
    if (times == std::floor(times) && times < 1e6) {
      return size * static_cast<int64_t>(times) / parts;
    }
  }
  const c10::SymNode node = size.toSymNode();
  return c10::SymInt(node->sym_float()->mul(node->wrap_float(scale))->floor());
}

// The output sizes and scale factors of (input, output_size, ..., scale_factors); nothing if there is not one per
// dimension.
struct Resampled {
  Sizes sizes;
  std::vector<std::optional<double>> scales;
};

std::optional<Resampled> resampled(const Call& call, size_t factors_arg) {
  const at::Tensor input = call.arg(0).toTensor();
  const c10::SymIntArrayRef before = input.sym_sizes();
  const bool has_sizes = !call.arg(1).isNone();
  const bool has_factors = !call.arg(factors_arg).isNone();
  if (before.size() < 3 || has_sizes == has_factors) {
    return std::nullopt;
  }
  Resampled result;
  result.scales.resize(before.size() - 2);
  if (has_sizes) {
    for (const c10::IValue& size : call.arg(1).toListRef()) {
      result.sizes.push_back(size.toSymInt());
    }
  } else {
    const std::vector<double> factors = call.arg(factors_arg).toDoubleVector();
    for (size_t i = 0; i < factors.size() && i + 2 < before.size(); ++i) {
      result.sizes.push_back(scaled(before[i + 2], factors[i]));
      result.scales[i] = factors[i];
    }
  }
  return result.sizes.size() == before.size() - 2 ? std::optional(std::move(result)) : std::nullopt;
}

// `Op` takes (input, size, scale per dimension).
template <typename Op, size_t... kDims>
bool nearest(const Call& call, std::index_sequence<kDims...> /*dims*/) {
  const std::optional<Resampled> to = resampled(call, 2);
  if (!to || to->scales.size() != sizeof...(kDims)) {
    return false;
  }
  answer_with(call, Op::call(call.arg(0).toTensor(), to->sizes, to->scales[kDims]...));
  return true;
}

template <typename Op, size_t kDims>
bool upsample_nearest(const Call& call) {
  return nearest<Op>(call, std::make_index_sequence<kDims>());
}

// `Op` takes (input, size, align_corners, scale per dimension).
template <typename Op, size_t... kDims>
bool aligned(const Call& call, std::index_sequence<kDims...> /*dims*/) {
  const std::optional<Resampled> to = resampled(call, 3);
  if (!to || to->scales.size() != sizeof...(kDims)) {
    return false;
  }
  answer_with(call, Op::call(call.arg(0).toTensor(), to->sizes, call.arg(2).toBool(), to->scales[kDims]...));
  return true;
}

template <typename Op, size_t kDims>
bool upsample(const Call& call) {
  return aligned<Op>(call, std::make_index_sequence<kDims>());
}

// ---- Products -------------------------------------------------------------------------------------------------------

// (self, other)
bool kron(const Call& call) {
  const at::Tensor self = call.arg(0).toTensor();
  const at::Tensor other = call.arg(1).toTensor();
  const int64_t rank = std::max(self.dim(), other.dim());
  Sizes first;
  Sizes second;
  Sizes sizes;
  for (int64_t dim = 0; dim < rank; ++dim) {
    const int64_t in_self = dim - (rank - self.dim());
    const int64_t in_other = dim - (rank - other.dim());
    const c10::SymInt a = in_self < 0 ? c10::SymInt(1) : self.sym_size(in_self);
    const c10::SymInt b = in_other < 0 ? c10::SymInt(1) : other.sym_size(in_other);
    first.insert(first.end(), {a, 1});
    second.insert(second.end(), {1, b});
    sizes.push_back(a * b);
  }
  answer_with(call, self.reshape_symint(first).mul(other.reshape_symint(second)).reshape_symint(sizes));
  return true;
}

// The order of multiplications with the fewest scalar operations: split[i][j] is where the product of factors i to j is
// split.
std::vector<std::vector<size_t>> cheapest_order(const std::vector<at::Tensor>& factors) {
  const size_t count = factors.size();
  Sizes lengths;
  for (const at::Tensor& factor : factors) {
    lengths.push_back(factor.sym_size(0));
  }
  lengths.push_back(factors.back().sym_size(1));
  std::vector<Sizes> cost(count, Sizes(count, c10::SymInt(0)));
  std::vector<std::vector<size_t>> split(count, std::vector<size_t>(count, 0));
  for (size_t span = 1; span < count; ++span) {
    for (size_t i = 0; i + span < count; ++i) {
      const size_t j = i + span;
      for (size_t k = i; k < j; ++k) {
        const c10::SymInt here = cost[i][k] + cost[k + 1][j] + lengths[i] * lengths[k + 1] * lengths[j + 1];
        if (k == i || here.sym_lt(cost[i][j]).guard_bool(__FILE__, __LINE__)) {
          cost[i][j] = here;
          split[i][j] = k;
        }
      }
    }
  }
  return split;
}

at::Tensor multiplied(
    const std::vector<at::Tensor>& factors,
    const std::vector<std::vector<size_t>>& split,
    size_t first,
    size_t last) {
  if (first == last) {
    return factors[first];
  }
  const size_t middle = split[first][last];
  return at::mm(multiplied(factors, split, first, middle), multiplied(factors, split, middle + 1, last));
}

// (tensors)
bool linalg_multi_dot(const Call& call) {
  std::vector<at::Tensor> factors = call.arg(0).toTensorVector();
  if (factors.size() < 2) {
    return false;
  }
  const bool is_row = factors.front().dim() == 1;
  const bool is_column = factors.back().dim() == 1;
  factors.front() = is_row ? factors.front().unsqueeze(0) : factors.front();
  factors.back() = is_column ? factors.back().unsqueeze(-1) : factors.back();
  for (size_t i = 0; i < factors.size(); ++i) {
    if (factors[i].dim() != 2 || factors[i].scalar_type() != factors[0].scalar_type() ||
        factors[i].device() != factors[0].device() ||
        (i > 0 && !factors[i - 1].sym_size(1).sym_eq(factors[i].sym_size(0)).expect_true(__FILE__, __LINE__))) {
      return false;  // the decomposition raises the error
    }
  }
  at::Tensor product = multiplied(factors, cheapest_order(factors), 0, factors.size() - 1);
  product = is_row ? product.squeeze(0) : product;
  answer_with(call, is_column ? product.squeeze(-1) : product);
  return true;
}

// ---- Selections and sequences ---------------------------------------------------------------------------------------

// (self, indices, dim)
bool take_along_dim(const Call& call) {
  const at::Tensor self = call.arg(0).toTensor();
  const at::Tensor indices = call.arg(1).toTensor();
  if (indices.scalar_type() != c10::kLong || call.arg(2).isNone() || self.dim() != indices.dim() || self.dim() == 0) {
    return false;
  }
  const int64_t dim = c10::maybe_wrap_dim(call.arg(2).toInt(), self.dim());
  const auto with = [&](const at::Tensor& tensor, const at::Tensor& other) {
    Sizes sizes(tensor.sym_sizes().begin(), tensor.sym_sizes().end());
    sizes[dim] = other.sym_size(dim);
    return sizes;
  };
  const at::Tensor places =
      indices.expand_symint(at::infer_size_symdimvector(with(self, indices), indices.sym_sizes()));
  const at::Tensor base = self.expand_symint(at::infer_size_symdimvector(with(indices, self), self.sym_sizes()));
  answer_with(call, base.gather(dim, places));
  return true;
}

// (gradient, input, mask)
bool masked_select_backward(const Call& call) {
  const at::Tensor input = call.arg(1).toTensor();
  const at::Tensor mask = call.arg(2).toTensor();
  const auto sizes = at::infer_size_symdimvector(input.sym_sizes(), mask.sym_sizes());
  at::Tensor result = at::zeros_like(input.expand_symint(sizes));
  result.masked_scatter_(mask, call.arg(0).toTensor());
  answer_with(call, std::move(result));
  return true;
}

// (self, chunks, dim)
bool unsafe_chunk(const Call& call) {
  const at::Tensor self = call.arg(0).toTensor();
  const int64_t chunks = call.arg(1).toInt();
  if (self.dim() == 0 || chunks <= 0) {
    return false;
  }
  const int64_t dim = c10::maybe_wrap_dim(call.arg(2).toInt(), self.dim());
  const c10::SymInt length = (self.sym_size(dim) + (chunks - 1)) / chunks;
  if (!length.sym_gt(0).guard_bool(__FILE__, __LINE__)) {
    return false;
  }
  answer_with(call, self.unsafe_split_symint(length, dim));
  return true;
}

// (sequences, batch_first, padding_value, padding_side)
bool pad_sequence(const Call& call) {
  const std::vector<at::Tensor> sequences = call.arg(0).toTensorVector();
  const bool batch_first = call.arg(1).toBool();
  const bool is_left = call.arg(3).toStringRef() == "left";
  if (sequences.empty() || (!is_left && call.arg(3).toStringRef() != "right")) {
    return false;
  }
  c10::SymInt longest = 0;
  for (const at::Tensor& sequence : sequences) {
    if (sequence.dim() == 0) {
      return false;
    }
    const bool is_longer = sequence.sym_size(0).sym_gt(longest).guard_bool(__FILE__, __LINE__);
    longest = is_longer ? sequence.sym_size(0) : longest;
  }
  const c10::SymIntArrayRef each = sequences[0].sym_sizes();
  Sizes sizes(each.begin(), each.end());
  sizes[0] = longest;
  sizes.insert(sizes.begin() + (batch_first ? 0 : 1), c10::SymInt(static_cast<int64_t>(sequences.size())));
  at::Tensor padded = at::full_symint(sizes, call.arg(2).toScalar(), sequences[0].options());
  for (size_t i = 0; i < sequences.size(); ++i) {
    const c10::SymInt length = sequences[i].sym_size(0);
    const at::Tensor row = padded.select(batch_first ? 0 : 1, static_cast<int64_t>(i));
    row.narrow_symint(0, is_left ? longest - length : c10::SymInt(0), length).copy_(sequences[i]);
  }
  answer_with(call, std::move(padded));
  return true;
}

// (input, p, train), for data-dependent sizes. The decomposition checks whether there are elements.
bool dropout(const Call& call) {
  const at::Tensor input = call.arg(0).toTensor();
  const double p = call.arg(1).toDouble();
  const c10::SymBool is_empty = input.sym_numel().sym_eq(0);
  const bool depends_on_data =
      is_empty.guard_or_true(__FILE__, __LINE__) && !is_empty.guard_or_false(__FILE__, __LINE__);
  if (!depends_on_data || !call.arg(2).toBool() || !(p > 0 && p < 1) || !input.is_floating_point()) {
    return false;
  }
  if (input.is_cuda()) {
    answer_with(call, std::get<0>(at::native_dropout(input, p, true)));
    return true;
  }
  answer_with(call, input.mul(at::empty_like(input).bernoulli_(1 - p).div_(1 - p)));
  return true;
}

template <CompositeRule kRule, typename Op>
void rule_over_symbols(torch::Library& library) {
  composite<&over_symbols<kRule>, &of_symbols, Op>(library);
}

}  // namespace

CompositeList symbolic_composites() {
  return {
      &rule_over_symbols<&upsample_nearest<ops::upsample_nearest1d, 1>, ops::upsample_nearest1d_vec>,
      &rule_over_symbols<&upsample_nearest<ops::upsample_nearest2d, 2>, ops::upsample_nearest2d_vec>,
      &rule_over_symbols<&upsample_nearest<ops::upsample_nearest3d, 3>, ops::upsample_nearest3d_vec>,
      &rule_over_symbols<&upsample_nearest<ops::_upsample_nearest_exact1d, 1>, ops::_upsample_nearest_exact1d_vec>,
      &rule_over_symbols<&upsample_nearest<ops::_upsample_nearest_exact2d, 2>, ops::_upsample_nearest_exact2d_vec>,
      &rule_over_symbols<&upsample_nearest<ops::_upsample_nearest_exact3d, 3>, ops::_upsample_nearest_exact3d_vec>,
      &rule_over_symbols<&upsample<ops::upsample_linear1d, 1>, ops::upsample_linear1d_vec>,
      &rule_over_symbols<&upsample<ops::upsample_bilinear2d, 2>, ops::upsample_bilinear2d_vec>,
      &rule_over_symbols<&upsample<ops::upsample_trilinear3d, 3>, ops::upsample_trilinear3d_vec>,
      &rule_over_symbols<&upsample<ops::upsample_bicubic2d, 2>, ops::upsample_bicubic2d_vec>,
      &rule_over_symbols<&upsample<ops::_upsample_bilinear2d_aa, 2>, ops::_upsample_bilinear2d_aa_vec>,
      &rule_over_symbols<&upsample<ops::_upsample_bicubic2d_aa, 2>, ops::_upsample_bicubic2d_aa_vec>,
      &rule_over_symbols<&kron, ops::kron>,
      &rule_over_symbols<&linalg_multi_dot, ops::linalg_multi_dot>,
      &rule_over_symbols<&take_along_dim, ops::take_along_dim>,
      &rule_over_symbols<&masked_select_backward, ops::masked_select_backward>,
      &rule_over_symbols<&unsafe_chunk, ops::unsafe_chunk>,
      &rule_over_symbols<&pad_sequence, ops::pad_sequence>,
      &rule_over_symbols<&dropout, ops::dropout>,
  };
}

}  // namespace torchfake
