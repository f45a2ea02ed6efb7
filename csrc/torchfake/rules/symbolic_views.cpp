// Symbolic rules of views. See Note [Symbolic calls].
#include <ATen/InferSize.h>
#include <ATen/TensorUtils.h>
#include <ATen/WrapDimUtils.h>

#include <torchfake/rules/symbolic_rules.h>

namespace torchfake {

namespace symbolic_rules {

namespace {

// Normalises `place`, which counts from the end if negative.
c10::SymInt from_the_start(const c10::SymInt& place, const c10::SymInt& size) {
  const std::optional<bool> is_negative = decided(place.sym_lt(0));
  if (is_negative) {
    return *is_negative ? place + size : place;
  }
  return place + size * ((place + 1).min(0) - place.min(0));  // adds `size` once if negative, otherwise not at all
}

bool give_view(SymbolicCall& call, c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides, const c10::SymInt& offset) {
  call.set_geometry(0, sizes, strides, offset);
  return true;
}

bool same_view(SymbolicCall& call) {
  const at::Tensor self = call.tensor(0);
  return give_view(call, self.sym_sizes(), self.sym_strides(), self.sym_storage_offset());
}

// (self, size)
bool view(SymbolicCall& call) {
  const at::Tensor self = call.tensor(0);
  const Sizes sizes = at::infer_size_dv(call.integers(1), self.sym_numel());
  std::optional<Sizes> strides = at::detail::computeStride(self.sym_sizes(), self.sym_strides(), sizes);
  if (!strides) {
    strides = strides_if_contiguous(self, sizes);
  }
  TORCH_CHECK(
      strides,
      "view size is not compatible with input tensor's size and stride (at least one dimension spans across two "
      "contiguous subspaces). Use .reshape(...) instead.");
  return give_view(call, sizes, *strides, self.sym_storage_offset());
}

bool permuted(SymbolicCall& call, c10::ArrayRef<int64_t> order) {
  const at::Tensor self = call.tensor(0);
  Sizes sizes;
  Sizes strides;
  for (const int64_t dim : order) {
    sizes.push_back(self.sym_size(dim));
    strides.push_back(self.sym_stride(dim));
  }
  return give_view(call, sizes, strides, self.sym_storage_offset());
}

std::vector<int64_t> identity(int64_t rank) {
  std::vector<int64_t> order(rank);
  for (int64_t i = 0; i < rank; ++i) {
    order[i] = i;
  }
  return order;
}

bool permute(SymbolicCall& call) {
  const int64_t rank = call.tensor(0).dim();
  std::vector<int64_t> order = call.arg(1).toIntVector();
  if (static_cast<int64_t>(order.size()) != rank) {
    return false;
  }
  std::vector<bool> seen(rank, false);
  for (int64_t& dim : order) {
    dim = c10::maybe_wrap_dim(dim, rank);
    if (seen[dim]) {
      return false;
    }
    seen[dim] = true;
  }
  return permuted(call, order);
}

// (self, dim0, dim1)
bool transpose(SymbolicCall& call) {
  const int64_t rank = call.tensor(0).dim();
  std::vector<int64_t> order = identity(rank);
  if (rank > 0) {
    std::swap(
        order[c10::maybe_wrap_dim(call.arg(1).toInt(), rank)], order[c10::maybe_wrap_dim(call.arg(2).toInt(), rank)]);
  }
  return permuted(call, order);
}

bool transpose_matrix(SymbolicCall& call) {
  const int64_t rank = call.tensor(0).dim();
  if (rank > 2) {
    return false;
  }
  std::vector<int64_t> order = identity(rank);
  std::reverse(order.begin(), order.end());
  return permuted(call, order);
}

// (self, dim)
bool unsqueeze(SymbolicCall& call) {
  const at::Tensor self = call.tensor(0);
  Sizes sizes = sizes_of(self);
  Sizes strides = strides_of(self);
  const int64_t dim = c10::maybe_wrap_dim(call.arg(1).toInt(), self.dim() + 1);
  const c10::SymInt stride = dim >= self.dim() ? c10::SymInt(1) : sizes[dim] * strides[dim];
  sizes.insert(sizes.begin() + dim, c10::SymInt(1));
  strides.insert(strides.begin() + dim, stride);
  return give_view(call, sizes, strides, self.sym_storage_offset());
}

// (self), (self, dim) or (self, dims)
bool squeeze(SymbolicCall& call) {
  const at::Tensor self = call.tensor(0);
  const int64_t rank = self.dim();
  std::vector<bool> is_asked(rank, call.call.num_args() == 1);
  if (call.call.num_args() > 1 && rank > 0) {
    const c10::IValue& dims = call.arg(1);
    for (const int64_t dim : dims.isInt() ? std::vector<int64_t>{dims.toInt()} : dims.toIntVector()) {
      is_asked[c10::maybe_wrap_dim(dim, rank)] = true;
    }
  }
  Sizes sizes;
  Sizes strides;
  for (int64_t dim = 0; dim < rank; ++dim) {
    if (!is_asked[dim] || !is_one(self.sym_size(dim))) {
      sizes.push_back(self.sym_size(dim));
      strides.push_back(self.sym_stride(dim));
    }
  }
  return give_view(call, sizes, strides, self.sym_storage_offset());
}

// (self, size, implicit)
bool expand(SymbolicCall& call) {
  const at::Tensor self = call.tensor(0);
  Sizes sizes = call.integers(1);
  const int64_t added = static_cast<int64_t>(sizes.size()) - self.dim();
  if (added < 0) {
    return false;
  }
  Sizes strides(sizes.size(), c10::SymInt(0));
  for (size_t i = 0; i < sizes.size(); ++i) {
    const int64_t dim = static_cast<int64_t>(i) - added;
    const bool is_kept = sizes[i].maybe_as_int() == std::optional<int64_t>(-1);
    if (dim < 0) {
      if (is_kept) {
        return false;
      }
      continue;
    }
    const c10::SymInt size = self.sym_size(dim);
    if (is_kept) {
      sizes[i] = size;
      strides[i] = self.sym_stride(dim);
    } else if (is_one(size) && !is_one(sizes[i])) {
      strides[i] = 0;
    } else if (guard(size.sym_eq(sizes[i]))) {
      strides[i] = self.sym_stride(dim);
    } else {
      return false;  // the call with concrete numbers reports the error
    }
  }
  // New leading dimensions of size one have the stride of the dimensions they contain, unless they contain none.
  for (int64_t i = self.dim() == 0 ? -1 : added - 1; i >= 0; --i) {
    if (is_one(sizes[i])) {
      const auto next = static_cast<size_t>(i) + 1;
      strides[i] = sizes[next] * strides[next];
    }
  }
  return give_view(call, sizes, strides, self.sym_storage_offset());
}

// (self, dim, index)
bool select(SymbolicCall& call) {
  const at::Tensor self = call.tensor(0);
  if (self.dim() == 0) {
    return false;
  }
  const int64_t dim = c10::maybe_wrap_dim(call.arg(1).toInt(), self.dim());
  const c10::SymInt size = self.sym_size(dim);
  const c10::SymInt asked = call.integer(2);
  if (!guard(asked.sym_ge(-size)) || !guard(asked.sym_lt(size))) {
    return false;
  }
  const c10::SymInt index = from_the_start(asked, size);
  Sizes sizes = sizes_of(self);
  Sizes strides = strides_of(self);
  const c10::SymInt offset = self.sym_storage_offset() + index * strides[dim];
  sizes.erase(sizes.begin() + dim);
  strides.erase(strides.begin() + dim);
  return give_view(call, sizes, strides, offset);
}

// (self, dim, start, end, step)
bool slice(SymbolicCall& call) {
  const at::Tensor self = call.tensor(0);
  if (self.dim() == 0) {
    return false;
  }
  const int64_t dim = c10::maybe_wrap_dim(call.arg(1).toInt(), self.dim());
  const c10::SymInt size = self.sym_size(dim);
  const c10::SymInt step = call.integer(4);
  if (!guard(step.sym_gt(0))) {
    return false;
  }
  // Branches on sizes with hints; without hints uses the minimum and maximum that Python computes.
  const auto bounded = [&](const c10::SymInt& asked, const c10::SymInt& low) {
    c10::SymInt place = from_the_start(asked, size);
    const std::optional<bool> is_below = decided(place.sym_lt(low));
    if (is_below == std::optional(true)) {
      return low;
    }
    if (!is_below) {
      place = place.max(low);
    }
    const std::optional<bool> is_above = decided(place.sym_gt(size));
    return is_above == std::optional(true) ? size : is_above ? place : place.min(size);
  };
  const c10::SymInt start = call.arg(2).isNone() ? c10::SymInt(0) : bounded(call.integer(2), 0);
  const bool to_the_end = call.arg(3).isNone() || call.integer(3).maybe_as_int() == std::optional(INT64_MAX);
  const c10::SymInt end = to_the_end ? size : bounded(call.integer(3), start);
  Sizes sizes = sizes_of(self);
  Sizes strides = strides_of(self);
  sizes[dim] = (end - start + step - 1) / step;
  const c10::SymInt offset = self.sym_storage_offset() + start * strides[dim];
  strides[dim] = strides[dim] * step;
  return give_view(call, sizes, strides, offset);
}

// (self, size, stride, storage_offset)
bool as_strided(SymbolicCall& call) {
  const at::Tensor self = call.tensor(0);
  return give_view(
      call, call.integers(1), call.integers(2), call.arg(3).isNone() ? self.sym_storage_offset() : call.integer(3));
}

// (self, dtype)
bool view_as_dtype(SymbolicCall& call) {
  const at::Tensor self = call.tensor(0);
  const auto before = static_cast<int64_t>(self.itemsize());
  const auto after = static_cast<int64_t>(call.outputs.at(0).itemsize());
  Sizes sizes = sizes_of(self);
  Sizes strides = strides_of(self);
  if (before == after) {
    return same_view(call);
  }
  if (sizes.empty()) {
    return false;
  }
  const bool is_smaller = after < before;
  const int64_t ratio = is_smaller ? before / after : after / before;
  const auto scaled = [&](const c10::SymInt& value) { return is_smaller ? value * ratio : value / ratio; };
  for (size_t i = 0; i + 1 < sizes.size(); ++i) {
    if (!is_smaller && !guard((strides[i] % ratio).sym_eq(0))) {
      return false;
    }
    strides[i] = scaled(strides[i]);
  }
  if (!is_smaller &&
      (!guard((sizes.back() % ratio).sym_eq(0)) || !guard((self.sym_storage_offset() % ratio).sym_eq(0)))) {
    return false;
  }
  sizes.back() = scaled(sizes.back());
  return give_view(call, sizes, strides, scaled(self.sym_storage_offset()));
}

bool view_as_real(SymbolicCall& call) {
  const at::Tensor self = call.tensor(0);
  Sizes sizes = sizes_of(self);
  Sizes strides = strides_of(self);
  for (c10::SymInt& stride : strides) {
    stride = stride * 2;
  }
  sizes.emplace_back(2);
  strides.emplace_back(1);
  return give_view(call, sizes, strides, self.sym_storage_offset() * 2);
}

bool view_as_complex(SymbolicCall& call) {
  const at::Tensor self = call.tensor(0);
  Sizes sizes = sizes_of(self);
  Sizes strides = strides_of(self);
  if (sizes.empty() || !guard(sizes.back().sym_eq(2))) {
    return false;
  }
  sizes.pop_back();
  strides.pop_back();
  for (c10::SymInt& stride : strides) {
    if (!guard((stride % 2).sym_eq(0))) {
      return false;
    }
    stride = stride / 2;
  }
  return guard((self.sym_storage_offset() % 2).sym_eq(0)) &&
      give_view(call, sizes, strides, self.sym_storage_offset() / 2);
}

// (self, offset, dim1, dim2)
bool diagonal(SymbolicCall& call) {
  const at::Tensor self = call.tensor(0);
  const int64_t shift = call.arg(1).toInt();
  const int64_t first = c10::maybe_wrap_dim(call.arg(2).toInt(), self.dim());
  const int64_t second = c10::maybe_wrap_dim(call.arg(3).toInt(), self.dim());
  const c10::SymInt rows = self.sym_size(first) + std::min<int64_t>(shift, 0);
  const c10::SymInt columns = self.sym_size(second) - std::max<int64_t>(shift, 0);
  const c10::SymInt size = rows.min(columns);
  if (first == second || !guard(size.sym_gt(0))) {
    return false;
  }
  Sizes sizes = sizes_of(self);
  Sizes strides = strides_of(self);
  const c10::SymInt offset =
      self.sym_storage_offset() + (shift >= 0 ? strides[second] * shift : strides[first] * (-shift));
  const c10::SymInt stride = strides[first] + strides[second];
  for (const int64_t dim : {std::max(first, second), std::min(first, second)}) {
    sizes.erase(sizes.begin() + dim);
    strides.erase(strides.begin() + dim);
  }
  sizes.push_back(size);
  strides.push_back(stride);
  return give_view(call, sizes, strides, offset);
}

// (self, dimension, size, step)
bool unfold(SymbolicCall& call) {
  const at::Tensor self = call.tensor(0);
  if (self.dim() == 0) {
    return false;
  }
  const int64_t dim = c10::maybe_wrap_dim(call.arg(1).toInt(), self.dim());
  const c10::SymInt size = call.integer(2);
  const c10::SymInt step = call.integer(3);
  Sizes sizes = sizes_of(self);
  Sizes strides = strides_of(self);
  if (!guard(size.sym_le(sizes[dim])) || !guard(step.sym_gt(0))) {
    return false;
  }
  sizes[dim] = (sizes[dim] - size) / step + 1;
  sizes.push_back(size);
  strides.push_back(strides[dim]);
  strides[dim] = strides[dim] * step;
  return give_view(call, sizes, strides, self.sym_storage_offset());
}

// Consecutive pieces of these sizes along a dimension.
bool give_pieces(SymbolicCall& call, int64_t dim, c10::SymIntArrayRef pieces) {
  const at::Tensor self = call.tensor(0);
  Sizes sizes = sizes_of(self);
  const Sizes strides = strides_of(self);
  c10::SymInt offset = self.sym_storage_offset();
  for (size_t i = 0; i < pieces.size(); ++i) {
    sizes[dim] = pieces[i];
    call.set_geometry(i, sizes, strides, offset);
    offset = offset + pieces[i] * strides[dim];
  }
  return true;
}

// (self, split_size, dim). The number of pieces is the number of outputs and follows from the size.
bool split(SymbolicCall& call) {
  const at::Tensor self = call.tensor(0);
  const int64_t dim = c10::maybe_wrap_dim(call.arg(2).toInt(), self.dim());
  const c10::SymInt piece = call.integer(1);
  const c10::SymInt size = self.sym_size(dim);
  if (!guard(piece.sym_gt(0))) {
    return false;
  }
  const auto count = call.outputs.empty() ? ((size + piece - 1) / piece).guard_int(__FILE__, __LINE__)
                                          : static_cast<int64_t>(call.outputs.size());
  if (!guard(size.sym_gt(piece * (count - 1))) || !guard(size.sym_le(piece * count))) {
    return false;
  }
  Sizes pieces(static_cast<size_t>(count), piece);
  pieces.back() = size - piece * (count - 1);
  return give_pieces(call, dim, pieces);
}

// (self, split_sizes, dim)
bool split_with_sizes(SymbolicCall& call) {
  const int64_t dim = c10::maybe_wrap_dim(call.arg(2).toInt(), call.tensor(0).dim());
  const Sizes pieces = call.integers(1);
  c10::SymInt sum = 0;
  for (const c10::SymInt& piece : pieces) {
    if (!guard(piece.sym_ge(0))) {
      return false;
    }
    sum = sum + piece;
  }
  return guard(sum.sym_eq(call.tensor(0).sym_size(dim))) && give_pieces(call, dim, pieces);
}

// (self, dim): one output per element of the dimension.
bool unbind(SymbolicCall& call) {
  const at::Tensor self = call.tensor(0);
  if (self.dim() == 0) {
    return false;
  }
  const int64_t dim = c10::maybe_wrap_dim(call.arg(1).toInt(), self.dim());
  const int64_t count = self.sym_size(dim).guard_int(__FILE__, __LINE__);
  Sizes sizes = sizes_of(self);
  Sizes strides = strides_of(self);
  const c10::SymInt stride = strides[dim];
  sizes.erase(sizes.begin() + dim);
  strides.erase(strides.begin() + dim);
  for (int64_t i = 0; i < count; ++i) {
    call.set_geometry(i, sizes, strides, self.sym_storage_offset() + stride * i);
  }
  return true;
}

constexpr Row kViews[] = {
    {"view _unsafe_view _reshape_alias", &view, Use::kView},
    {"view.dtype", &view_as_dtype, Use::kHintsOnly},
    {"alias detach", &same_view, Use::kView},
    {"_conj _neg_view lift_fresh", &same_view, Use::kHintsOnly},
    {"permute", &permute, Use::kView},
    {"transpose.int transpose_", &transpose, Use::kView},
    {"t t_", &transpose_matrix, Use::kView},
    {"unsqueeze unsqueeze_", &unsqueeze, Use::kView},
    {"squeeze squeeze_", &squeeze, Use::kView},
    {"expand", &expand, Use::kView},
    {"select.int", &select, Use::kView},
    {"slice.Tensor", &slice, Use::kView},
    {"as_strided as_strided_", &as_strided, Use::kView},
    {"view_as_real", &view_as_real, Use::kHintsOnly},
    {"view_as_complex", &view_as_complex, Use::kHintsOnly},
    {"diagonal", &diagonal, Use::kView},
    {"unfold", &unfold, Use::kView},
    {"split.Tensor", &split, Use::kView},
    {"split_with_sizes", &split_with_sizes, Use::kView},
    {"unbind.int", &unbind, Use::kView},
};

}  // namespace

c10::ArrayRef<Row> views() {
  return kViews;
}

}  // namespace symbolic_rules

}  // namespace torchfake
