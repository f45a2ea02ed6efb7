// Symbolic rules: the sizes of outputs as expressions. See Note [Symbolic calls].
#include <ATen/InferSize.h>
#include <ATen/TensorUtils.h>
#include <ATen/WrapDimUtils.h>

#include <torchfake/dispatch/symbolic_call.h>
#include <torchfake/rules/operator_table.h>

namespace torchfake {

namespace {

using Sizes = SymbolicCall::Sizes;
using Outputs = std::vector<c10::IValue>;

// What has to hold for the call to be valid. Of a size that only data knows, it is taken to, and checked at run time.
bool guard(const c10::SymBool& condition) {
  return condition.expect_true(__FILE__, __LINE__);
}

// What may hold or not, and of a size that only data knows is taken not to.
bool if_known(const c10::SymBool& condition) {
  return condition.guard_or_false(__FILE__, __LINE__);
}

// By the hint; nothing where only data knows.
std::optional<bool> decided(const c10::SymBool& condition) {
  const bool is_true = condition.guard_or_false(__FILE__, __LINE__);
  return is_true == condition.guard_or_true(__FILE__, __LINE__) ? std::optional(is_true) : std::nullopt;
}

// `place`, counted from the end where it is negative.
c10::SymInt from_the_start(const c10::SymInt& place, const c10::SymInt& size) {
  const std::optional<bool> is_negative = decided(place.sym_lt(0));
  if (is_negative) {
    return *is_negative ? place + size : place;
  }
  return place + size * ((place + 1).min(0) - place.min(0));  // once the size below zero, and not at all from there on
}

bool is_one(const c10::SymInt& size) {
  const std::optional<int64_t> number = size.maybe_as_int();
  return number ? *number == 1 : if_known(size.sym_eq(1));
}

Sizes sizes_of(const at::Tensor& tensor) {
  const c10::SymIntArrayRef sizes = tensor.sym_sizes();
  return Sizes(sizes.begin(), sizes.end());
}

Sizes strides_of(const at::Tensor& tensor) {
  const c10::SymIntArrayRef strides = tensor.sym_strides();
  return Sizes(strides.begin(), strides.end());
}

// ---- Fresh outputs ----------------------------------------------------------------------------------------------------

// Adds the sizes of another tensor to `sizes`, aligned at the end. Guards that equal sizes are equal.
bool broadcast(Sizes& sizes, c10::SymIntArrayRef other) {
  if (other.size() > sizes.size()) {
    sizes.insert(sizes.begin(), other.size() - sizes.size(), c10::SymInt(1));
  }
  const size_t shift = sizes.size() - other.size();
  for (size_t i = 0; i < other.size(); ++i) {
    c10::SymInt& size = sizes[shift + i];
    if (is_one(size)) {
      size = other[i];
    } else if (!is_one(other[i]) && !guard(size.sym_eq(other[i]))) {
      return false;
    }
  }
  return true;
}

bool pointwise(SymbolicCall& call) {
  Sizes sizes;
  for (const TensorArg& tensor : call.call.tensors()) {
    if (!tensor.is_out && !broadcast(sizes, tensor.impl->sym_sizes())) {
      return false;
    }
  }
  call.guard_stride_order();
  call.set_outputs(sizes);
  return true;
}

bool like_first(SymbolicCall& call) {
  call.guard_stride_order();
  call.set_outputs(sizes_of(call.tensor(0)));
  return true;
}

// Those of an argument named `size` or `input_sizes`.
bool as_asked(SymbolicCall& call) {
  for (const char* name : {"size", "input_sizes", "self_sizes"}) {
    if (const int index = call.arg_named(name); index >= 0 && call.arg(index).isList()) {
      call.set_outputs(call.integers(index));
      return true;
    }
  }
  return false;
}

bool product(SymbolicCall& call, size_t first) {
  const Sizes a = sizes_of(call.tensor(first));
  const Sizes b = sizes_of(call.tensor(first + 1));
  const size_t dim = a.size();
  if (dim < 2 || b.size() != dim || !guard(a[dim - 1].sym_eq(b[dim - 2])) || (dim == 3 && !guard(a[0].sym_eq(b[0])))) {
    return false;
  }
  Sizes sizes = a;
  sizes[dim - 1] = b[dim - 1];
  if (first == 1) {  // what is added has to broadcast to the result
    Sizes sum = sizes;
    if (!broadcast(sum, call.tensor(0).sym_sizes()) || sum.size() != sizes.size()) {
      return false;
    }
  }
  call.set_outputs(sizes);
  return true;
}

bool multiply(SymbolicCall& call) {
  return product(call, 0);
}

bool multiply_and_add(SymbolicCall& call) {
  return product(call, 1);
}

// By the arguments `dim`, a number, a list or nothing, and `keepdim`.
bool reduction(SymbolicCall& call) {
  const Sizes before = sizes_of(call.tensor(0));
  const auto rank = static_cast<int64_t>(before.size());
  const int dim_arg = call.arg_named("dim");
  const int keep_arg = call.arg_named("keepdim");
  const bool keeps = keep_arg >= 0 && call.arg(keep_arg).toBool();
  std::vector<bool> is_reduced(before.size(), true);
  if (dim_arg >= 0 && !call.arg(dim_arg).isNone()) {
    const c10::IValue& dims = call.arg(dim_arg);
    const std::vector<int64_t> list = dims.isInt() ? std::vector<int64_t>{dims.toInt()} : dims.toIntVector();
    if (!list.empty()) {
      is_reduced.assign(before.size(), false);
      for (const int64_t dim : list) {
        if (rank > 0) {
          is_reduced[c10::maybe_wrap_dim(dim, rank)] = true;
        }
      }
    }
  }
  Sizes sizes;
  for (size_t i = 0; i < before.size(); ++i) {
    if (!is_reduced[i]) {
      sizes.push_back(before[i]);
    } else if (keeps) {
      sizes.emplace_back(1);
    }
  }
  call.guard_stride_order();
  call.set_outputs(sizes);
  return true;
}

// (input, normalized_shape, ...): the result, and one statistic per normalised group.
bool layer_norm(SymbolicCall& call) {
  const Sizes sizes = sizes_of(call.tensor(0));
  const Sizes normalised = call.integers(1);
  if (normalised.size() > sizes.size()) {
    return false;
  }
  Sizes statistics = sizes;
  for (size_t i = 0; i < normalised.size(); ++i) {
    const size_t dim = sizes.size() - normalised.size() + i;
    if (!guard(sizes[dim].sym_eq(normalised[i]))) {
      return false;
    }
    statistics[dim] = 1;
  }
  call.guard_stride_order();
  call.set_output(0, sizes);
  call.set_output(1, statistics);
  call.set_output(2, statistics);
  return true;
}

// (weight, indices)
bool embedding(SymbolicCall& call) {
  Sizes sizes = sizes_of(call.tensor(1));
  sizes.push_back(call.tensor(0).sym_size(1));
  call.set_outputs(sizes);
  return true;
}

// (gradient, indices, num_weights, ...)
bool embedding_backward(SymbolicCall& call) {
  const Sizes gradient = sizes_of(call.tensor(0));
  call.set_outputs({call.integer(2), gradient.back()});
  return true;
}

bool concatenate(SymbolicCall& call) {
  const std::vector<at::Tensor> tensors = call.arg(0).toTensorVector();
  Sizes sizes = sizes_of(tensors.at(0));
  const auto rank = static_cast<int64_t>(sizes.size());
  if (rank == 0) {
    return false;
  }
  const int64_t dim = c10::maybe_wrap_dim(call.arg(1).toInt(), rank);
  for (size_t i = 1; i < tensors.size(); ++i) {
    const Sizes other = sizes_of(tensors[i]);
    if (other.size() != sizes.size()) {
      return false;  // the old rule that empty tensors are passed over
    }
    for (int64_t j = 0; j < rank; ++j) {
      if (j == dim) {
        sizes[j] = sizes[j] + other[j];
      } else if (!guard(sizes[j].sym_eq(other[j]))) {
        return false;
      }
    }
  }
  call.guard_stride_order();
  call.set_outputs(sizes);
  return true;
}

// (tensors, dim)
bool stack(SymbolicCall& call) {
  const std::vector<at::Tensor> tensors = call.arg(0).toTensorVector();
  Sizes sizes = sizes_of(tensors.at(0));
  for (const at::Tensor& tensor : tensors) {
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (tensor.dim() != static_cast<int64_t>(sizes.size()) ||
          !guard(sizes[i].sym_eq(tensor.sym_size(static_cast<int64_t>(i))))) {
        return false;
      }
    }
  }
  const int64_t dim = c10::maybe_wrap_dim(call.arg(1).toInt(), static_cast<int64_t>(sizes.size()) + 1);
  sizes.insert(sizes.begin() + dim, c10::SymInt(static_cast<int64_t>(tensors.size())));
  call.guard_stride_order();
  call.set_outputs(sizes);
  return true;
}

// (self, dim, index): a row for each index.
bool index_select(SymbolicCall& call) {
  Sizes sizes = sizes_of(call.tensor(0));
  if (sizes.empty() || call.tensor(2).dim() != 1) {
    return false;
  }
  sizes[c10::maybe_wrap_dim(call.arg(1).toInt(), static_cast<int64_t>(sizes.size()))] = call.tensor(2).sym_size(0);
  call.set_outputs(sizes);
  return true;
}

// (self, indices): the sizes that the indices have together, in the place of the dimensions they select from, or in front
// where these are not next to each other.
bool index(SymbolicCall& call) {
  const Sizes before = sizes_of(call.tensor(0));
  Sizes selected;
  std::vector<size_t> places;
  const std::vector<std::optional<at::Tensor>> indices = call.arg(1).toOptionalTensorVector();
  if (indices.size() > before.size()) {
    return false;
  }
  for (size_t dim = 0; dim < indices.size(); ++dim) {
    const std::optional<at::Tensor>& each = indices[dim];
    if (!each || !each->defined()) {
      continue;
    }
    if (each->scalar_type() == c10::kBool || each->scalar_type() == c10::kByte ||
        !broadcast(selected, each->sym_sizes())) {
      return false;
    }
    places.push_back(dim);
  }
  if (places.empty()) {
    return false;
  }
  const bool is_adjacent = places.back() - places.front() + 1 == places.size();
  Sizes sizes;
  if (!is_adjacent) {
    sizes = selected;
  }
  for (size_t dim = 0; dim < before.size(); ++dim) {
    if (is_adjacent && dim == places.front()) {
      sizes.insert(sizes.end(), selected.begin(), selected.end());
    }
    if (std::find(places.begin(), places.end(), dim) == places.end()) {
      sizes.push_back(before[dim]);
    }
  }
  call.guard_stride_order();
  call.set_outputs(sizes);
  return true;
}

// (query, key, value, ...): the result, and a logarithm per query.
bool attention(SymbolicCall& call) {
  const Sizes query = sizes_of(call.tensor(0));
  const Sizes key = sizes_of(call.tensor(1));
  const Sizes value = sizes_of(call.tensor(2));
  if (query.size() != 4 || key.size() != 4 || value.size() != 4) {
    return false;
  }
  const bool agrees = guard(query[0].sym_eq(key[0])) && guard(key[0].sym_eq(value[0])) &&
      guard(query[1].sym_eq(key[1])) && guard(key[1].sym_eq(value[1])) && guard(key[2].sym_eq(value[2])) &&
      guard(query[3].sym_eq(key[3]));
  if (!agrees) {
    return false;
  }
  call.guard_stride_order();
  call.set_output(0, {query[0], query[1], query[2], value[3]});
  call.set_output(1, {query[0], query[1], query[2]});
  return true;
}

// ---- Views ------------------------------------------------------------------------------------------------------------

bool give_view(
    SymbolicCall& call,
    Outputs& outputs,
    c10::SymIntArrayRef sizes,
    c10::SymIntArrayRef strides,
    const c10::SymInt& offset) {
  outputs.emplace_back(symbolic_view(call.tensor(0), sizes, strides, offset));
  return true;
}

bool same_view(SymbolicCall& call, Outputs& outputs) {
  const at::Tensor self = call.tensor(0);
  return give_view(call, outputs, self.sym_sizes(), self.sym_strides(), self.sym_storage_offset());
}

// (self, size)
bool view(SymbolicCall& call, Outputs& outputs) {
  const at::Tensor self = call.tensor(0);
  if (call.arg(1).isInt()) {
    return false;  // view(dtype)
  }
  const Sizes sizes = at::infer_size_dv(call.integers(1), self.sym_numel());
  const std::optional<Sizes> strides = at::detail::computeStride(self.sym_sizes(), self.sym_strides(), sizes);
  TORCH_CHECK(
      strides,
      "view size is not compatible with input tensor's size and stride (at least one dimension spans across two "
      "contiguous subspaces). Use .reshape(...) instead.");
  return give_view(call, outputs, sizes, *strides, self.sym_storage_offset());
}

bool permuted(SymbolicCall& call, Outputs& outputs, c10::ArrayRef<int64_t> order) {
  const at::Tensor self = call.tensor(0);
  Sizes sizes;
  Sizes strides;
  for (const int64_t dim : order) {
    sizes.push_back(self.sym_size(dim));
    strides.push_back(self.sym_stride(dim));
  }
  return give_view(call, outputs, sizes, strides, self.sym_storage_offset());
}

std::vector<int64_t> identity(int64_t rank) {
  std::vector<int64_t> order(rank);
  for (int64_t i = 0; i < rank; ++i) {
    order[i] = i;
  }
  return order;
}

bool permute(SymbolicCall& call, Outputs& outputs) {
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
  return permuted(call, outputs, order);
}

// (self, dim0, dim1)
bool transpose(SymbolicCall& call, Outputs& outputs) {
  const int64_t rank = call.tensor(0).dim();
  std::vector<int64_t> order = identity(rank);
  if (rank > 0) {
    std::swap(
        order[c10::maybe_wrap_dim(call.arg(1).toInt(), rank)], order[c10::maybe_wrap_dim(call.arg(2).toInt(), rank)]);
  }
  return permuted(call, outputs, order);
}

bool transpose_matrix(SymbolicCall& call, Outputs& outputs) {
  const int64_t rank = call.tensor(0).dim();
  if (rank > 2) {
    return false;
  }
  std::vector<int64_t> order = identity(rank);
  std::reverse(order.begin(), order.end());
  return permuted(call, outputs, order);
}

// (self, dim)
bool unsqueeze(SymbolicCall& call, Outputs& outputs) {
  const at::Tensor self = call.tensor(0);
  Sizes sizes = sizes_of(self);
  Sizes strides = strides_of(self);
  const int64_t dim = c10::maybe_wrap_dim(call.arg(1).toInt(), self.dim() + 1);
  const c10::SymInt stride = dim >= self.dim() ? c10::SymInt(1) : sizes[dim] * strides[dim];
  sizes.insert(sizes.begin() + dim, c10::SymInt(1));
  strides.insert(strides.begin() + dim, stride);
  return give_view(call, outputs, sizes, strides, self.sym_storage_offset());
}

// (self), (self, dim) or (self, dims)
bool squeeze(SymbolicCall& call, Outputs& outputs) {
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
  return give_view(call, outputs, sizes, strides, self.sym_storage_offset());
}

// (self, size, implicit)
bool expand(SymbolicCall& call, Outputs& outputs) {
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
      return false;  // the answer for numbers says what is wrong
    }
  }
  // New dimensions in front have the stride of what they contain, where they have one element.
  for (int64_t i = added - 1; i >= 0; --i) {
    if (is_one(sizes[i])) {
      const auto next = static_cast<size_t>(i) + 1;
      strides[i] = next < sizes.size() ? sizes[next] * strides[next] : c10::SymInt(1);
    }
  }
  return give_view(call, outputs, sizes, strides, self.sym_storage_offset());
}

// (self, dim, index)
bool select(SymbolicCall& call, Outputs& outputs) {
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
  return give_view(call, outputs, sizes, strides, offset);
}

// (self, dim, start, end, step)
bool slice(SymbolicCall& call, Outputs& outputs) {
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
  // By decisions where sizes have hints, and by the minimum and maximum that Python computes where they have none.
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
  return give_view(call, outputs, sizes, strides, offset);
}

// (self, size, stride, storage_offset)
bool as_strided(SymbolicCall& call, Outputs& outputs) {
  const at::Tensor self = call.tensor(0);
  return give_view(
      call,
      outputs,
      call.integers(1),
      call.integers(2),
      call.arg(3).isNone() ? self.sym_storage_offset() : call.integer(3));
}

// (self, dim): as many views as the dimension has elements.
bool unbind(SymbolicCall& call, Outputs& outputs) {
  const at::Tensor self = call.tensor(0);
  if (self.dim() == 0) {
    return false;
  }
  const int64_t dim = c10::maybe_wrap_dim(call.arg(1).toInt(), self.dim());
  Sizes sizes = sizes_of(self);
  Sizes strides = strides_of(self);
  const int64_t count = sizes[dim].guard_int(__FILE__, __LINE__);
  const c10::SymInt stride = strides[dim];
  sizes.erase(sizes.begin() + dim);
  strides.erase(strides.begin() + dim);
  c10::List<at::Tensor> views;
  for (int64_t i = 0; i < count; ++i) {
    views.push_back(symbolic_view(self, sizes, strides, self.sym_storage_offset() + i * stride));
  }
  outputs.emplace_back(std::move(views));
  return true;
}

// The same view of itself: squeeze_.
template <SymbolicView kView>
bool in_place(SymbolicCall& call, Outputs& outputs) {
  Outputs views;
  if (!kView(call, views)) {
    return false;
  }
  const at::Tensor self = call.tensor(0);
  const at::Tensor view = views[0].toTensor();
  if (!view.unsafeGetTensorImpl()->has_symbolic_sizes_strides()) {
    return false;  // a tensor that was symbolic cannot become plain
  }
  c10::TensorImpl* impl = self.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(view.sym_sizes(), view.sym_strides(), view.sym_storage_offset());
  impl->bump_version();
  outputs.emplace_back(self);
  return true;
}

// ---- The table --------------------------------------------------------------------------------------------------------

struct Row {
  const char* names;
  SymbolicRules rules;
};

constexpr Row kRows[] = {
    {"view _unsafe_view _reshape_alias", {nullptr, &view}},
    {"alias detach", {nullptr, &same_view}},
    {"permute", {nullptr, &permute}},
    {"transpose.int", {nullptr, &transpose}},
    {"t", {nullptr, &transpose_matrix}},
    {"unsqueeze", {nullptr, &unsqueeze}},
    {"squeeze", {nullptr, &squeeze}},
    {"expand", {nullptr, &expand}},
    {"select.int", {nullptr, &select}},
    {"slice.Tensor", {nullptr, &slice}},
    {"as_strided", {nullptr, &as_strided}},
    {"unbind", {nullptr, &unbind}},
    {"squeeze_", {nullptr, &in_place<&squeeze>}},
    {"unsqueeze_", {nullptr, &in_place<&unsqueeze>}},
    {"t_", {nullptr, &in_place<&transpose_matrix>}},
    {"transpose_", {nullptr, &in_place<&transpose>}},
    {"as_strided_", {nullptr, &in_place<&as_strided>}},
    {"mm bmm", {&multiply, nullptr}},
    {"addmm addmm_ baddbmm baddbmm_", {&multiply_and_add, nullptr}},
    {"sum mean amax amin prod any all argmax argmin max.dim min.dim var.correction std.correction var_mean.correction "
     "logsumexp nansum count_nonzero",
     {&reduction, nullptr}},
    {"_softmax _log_softmax cumsum cumprod clone _to_copy empty_like zeros_like ones_like full_like rand_like "
     "randn_like "
     "tril triu native_dropout fill_ zero_ normal_ uniform_ bernoulli_.float sort flip",
     {&like_first, nullptr}},
    {"empty.memory_format zeros ones full rand randn new_empty new_zeros new_ones new_full select_backward "
     "slice_backward",
     {&as_asked, nullptr}},
    {"native_layer_norm", {&layer_norm, nullptr}},
    {"embedding", {&embedding, nullptr}},
    {"embedding_dense_backward", {&embedding_backward, nullptr}},
    {"cat", {&concatenate, nullptr}},
    {"stack", {&stack, nullptr}},
    {"index_select", {&index_select, nullptr}},
    {"index.Tensor _unsafe_index", {&index, nullptr}},
    {"_scaled_dot_product_flash_attention_for_cpu", {&attention, nullptr}},
    {"copy_ masked_fill masked_fill_ _softmax_backward_data _log_softmax_backward_data", {&pointwise, nullptr}},
};

// Tags say so of operators that return something new; of one that works in place, the other one's is asked.
bool is_pointwise(const OpTraits& traits) {
  if (traits.is_pointwise || traits.name.back() != '_') {
    return traits.is_pointwise;
  }
  const auto functional =
      c10::Dispatcher::singleton().findSchema({traits.name.substr(0, traits.name.size() - 1), traits.overload});
  return functional && OpTraits::of(*functional).is_pointwise;
}

SymbolicRules find_rules(const OpTraits& traits) {
  thread_local ska::flat_hash_map<const OpTraits*, SymbolicRules> known;
  if (const auto found = known.find(&traits); found != known.end()) {
    return found->second;
  }
  SymbolicRules rules;
  if (traits.has_out) {
    return rules;  // an out= argument with numbers for sizes would be resized without a guard
  }
  const std::string_view library = std::string_view(traits.name).substr(0, traits.name.find("::"));
  for (const Row& row : kRows) {
    if (traits.is_aten && names_operator(row.names, library, traits.base_name(), traits.overload)) {
      rules = row.rules;
    }
  }
  if (rules.rule == nullptr && rules.view == nullptr && traits.is_aten && is_pointwise(traits) && !traits.is_foreach) {
    rules.rule = &pointwise;
  }
  known.emplace(&traits, rules);
  return rules;
}

[[maybe_unused]] const bool g_is_set = (set_symbolic_rules(&find_rules), true);

}  // namespace

}  // namespace torchfake
