// Symbolic rules: the sizes of outputs as expressions. See Note [Symbolic calls].
#include <ATen/InferSize.h>
#include <ATen/TensorUtils.h>
#include <ATen/WrapDimUtils.h>

#include <torchfake/rules/operator_table.h>
#include <torchfake/rules/symbolic_rules.h>

namespace torchfake {

namespace symbolic_rules {

bool broadcast(Sizes& sizes, c10::SymIntArrayRef other) {
  if (other.size() > sizes.size()) {
    sizes.insert(sizes.begin(), other.size() - sizes.size(), c10::SymInt(1));
  }
  const size_t shift = sizes.size() - other.size();
  for (size_t i = 0; i < other.size(); ++i) {
    c10::SymInt& size = sizes[shift + i];
    if (size.sym_eq(other[i]).statically_known_true(__FILE__, __LINE__)) {
      continue;  // the same result whether or not the size is one
    }
    if (is_one(size)) {
      size = other[i];
    } else if (!is_one(other[i]) && !guard(size.sym_eq(other[i]))) {
      return false;
    }
  }
  return true;
}

namespace {

bool has_sizes(const at::Tensor& tensor, const Sizes& sizes) {
  if (static_cast<size_t>(tensor.dim()) != sizes.size()) {
    return false;
  }
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (!guard(sizes[i].sym_eq(tensor.sym_size(static_cast<int64_t>(i))))) {
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

// All outputs have the sizes of this argument.
template <size_t kArg>
bool like(SymbolicCall& call) {
  call.guard_stride_order();
  call.set_outputs(sizes_of(call.tensor(kArg)));
  return true;
}

// (gradient, ..., self, ...): the gradient of `self`.
bool like_self(SymbolicCall& call) {
  call.guard_stride_order();
  call.set_outputs(sizes_of(call.tensor(call.arg_named("self"))));
  return true;
}

// The sizes of an argument named `size`, `input_sizes` or `self_sizes`.
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
  if (first == 1) {  // the addend must broadcast to the result
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

// Uses the arguments `dim` (a number, a list or None) and `keepdim`.
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

// (self, size)
bool resize(SymbolicCall& call) {
  call.set_outputs(call.integers(1));
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
      return false;  // the legacy rule that empty tensors are skipped
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

// (self, dim, index): one row per index.
bool index_select(SymbolicCall& call) {
  Sizes sizes = sizes_of(call.tensor(0));
  if (sizes.empty() || call.tensor(2).dim() != 1) {
    return false;
  }
  sizes[c10::maybe_wrap_dim(call.arg(1).toInt(), static_cast<int64_t>(sizes.size()))] = call.tensor(2).sym_size(0);
  call.set_outputs(sizes);
  return true;
}

// The broadcast sizes of the indices replace the dimensions they select from, or come first if these are not adjacent.
// False for masks.
bool indexed(const Sizes& before, const std::vector<std::optional<at::Tensor>>& indices, Sizes& sizes) {
  Sizes selected;
  std::vector<size_t> places;
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
  return true;
}

// (self, indices)
bool index(SymbolicCall& call) {
  Sizes sizes;
  if (!indexed(sizes_of(call.tensor(0)), call.arg(1).toOptionalTensorVector(), sizes)) {
    return false;
  }
  call.guard_stride_order();
  call.set_outputs(sizes);
  return true;
}

// (self, indices, values, ...): the values must broadcast to what the indices select. A mask selects an unknown number.
bool index_put(SymbolicCall& call) {
  Sizes sizes;
  if (indexed(sizes_of(call.tensor(0)), call.arg(1).toOptionalTensorVector(), sizes)) {
    Sizes sum = sizes;
    if (!broadcast(sum, call.tensor(2).sym_sizes()) || sum.size() != sizes.size()) {
      return false;
    }
  }
  return like<0>(call);
}

// (self, dim, index, src or value, ...): within self but for `dim`, and within src.
bool scatter(SymbolicCall& call) {
  const Sizes sizes = sizes_of(call.tensor(0));
  const Sizes index = sizes_of(call.tensor(2));
  const bool has_source = call.arg(3).isTensor() && call.tensor(3).dim() > 0;
  if (sizes.empty() || index.size() != sizes.size() ||
      (has_source && call.tensor(3).dim() != static_cast<int64_t>(index.size()))) {
    return false;
  }
  const int64_t dim = c10::maybe_wrap_dim(call.arg(1).toInt(), static_cast<int64_t>(sizes.size()));
  for (size_t i = 0; i < sizes.size(); ++i) {
    if ((static_cast<int64_t>(i) != dim && !guard(index[i].sym_le(sizes[i]))) ||
        (has_source && !guard(index[i].sym_le(call.tensor(3).sym_size(static_cast<int64_t>(i)))))) {
      return false;
    }
  }
  return like<0>(call);
}

// (self, dim, index, source, ...): one row of the source per index.
bool index_add(SymbolicCall& call) {
  Sizes rows = sizes_of(call.tensor(0));
  if (rows.empty() || call.tensor(2).dim() != 1) {
    return false;
  }
  rows[c10::maybe_wrap_dim(call.arg(1).toInt(), static_cast<int64_t>(rows.size()))] = call.tensor(2).sym_size(0);
  return has_sizes(call.tensor(3), rows) && like<0>(call);
}

// (query, key, value, ...): the result, and one logsumexp per query.
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

// (padded, offsets, total length): one row per element of the sequences.
bool jagged(SymbolicCall& call) {
  const Sizes padded = sizes_of(call.tensor(0));
  if (padded.size() < 2 || call.arg(2).isNone()) {
    return false;
  }
  Sizes sizes{call.integer(2)};
  sizes.append(padded.begin() + 2, padded.end());
  call.set_outputs(sizes);
  return true;
}

// Element by element over lists: foreach and fused optimizers. The tensors at the same position of every list belong
// together.
bool element_by_element(SymbolicCall& call) {
  std::vector<std::vector<at::Tensor>> lists;
  std::vector<at::Tensor> singles;
  for (size_t i = 0; i < call.call.num_args(); ++i) {
    const c10::IValue& value = call.arg(i);
    if (value.isTensorList()) {
      lists.push_back(value.toTensorVector());
    } else if (value.isTensor() && value.toTensor().defined()) {
      singles.push_back(value.toTensor());
    }
  }
  call.guard_stride_order();
  for (size_t i = 0; !lists.empty() && i < lists[0].size(); ++i) {
    Sizes sizes;
    for (const std::vector<at::Tensor>& list : lists) {
      if (i < list.size() && !broadcast(sizes, list[i].sym_sizes())) {
        return false;
      }
    }
    for (const at::Tensor& single : singles) {
      if (!broadcast(sizes, single.sym_sizes())) {
        return false;
      }
    }
    if (i < call.outputs.size()) {
      call.outputs[i].dim() == 0 ? call.set_output(i, {}) : call.set_output(i, sizes);
    } else if (call.outputs.empty() && !has_sizes(lists[0][i], sizes)) {
      return false;
    }
  }
  return true;
}

// ---- The table ------------------------------------------------------------------------------------------------------

constexpr Row kRows[] = {
    {"mm bmm", &multiply},
    {"addmm addmm_ baddbmm baddbmm_", &multiply_and_add},
    {"sum mean amax amin prod any all argmax argmin max.dim min.dim var.correction std.correction var_mean.correction "
     "logsumexp nansum count_nonzero hash_tensor median.dim nanmedian.dim mode kthvalue",
     &reduction},
    {"_softmax _log_softmax cumsum cumprod clone _to_copy empty_like zeros_like ones_like full_like rand_like "
     "randn_like "
     "randint_like tril triu native_dropout fill_ zero_ normal_ uniform_ bernoulli_.float exponential_ geometric_ "
     "cauchy_ log_normal_ random_ bernoulli sort flip roll renorm cummax "
     "cummin logcumsumexp _fft_c2c put put_ index_fill index_fill_",
     &like<0>},
    {"resize_as_", &like<1>},
    {"empty.memory_format zeros ones full rand randn randint randint.low new_empty new_zeros new_ones new_full "
     "select_backward "
     "slice_backward diagonal_backward",
     &as_asked},
    {"native_layer_norm", &layer_norm},
    {"resize_", &resize, Use::kHintsOnly},
    {"embedding", &embedding},
    {"embedding_dense_backward", &embedding_backward},
    {"cat", &concatenate},
    {"stack", &stack},
    {"index_select", &index_select},
    {"index.Tensor _unsafe_index", &index},
    {"index_put index_put_ _index_put_impl_ _unsafe_index_put", &index_put},
    {"scatter scatter_ scatter_add scatter_add_ scatter_reduce scatter_reduce_", &scatter},
    {"index_add index_add_ index_copy index_copy_", &index_add},
    {"_scaled_dot_product_flash_attention_for_cpu", &attention},
    {"_padded_dense_to_jagged_forward", &jagged},
    {"copy_ complex polar masked_fill masked_fill_ _softmax_backward_data _log_softmax_backward_data", &pointwise},
};

// Tags declare this for functional operators; an in-place operator uses the tag of its functional form.
bool is_pointwise(const OpTraits& traits) {
  if (traits.is_pointwise || traits.name.back() != '_') {
    return traits.is_pointwise;
  }
  const auto functional =
      c10::Dispatcher::singleton().findSchema({traits.name.substr(0, traits.name.size() - 1), traits.overload});
  return functional && OpTraits::of(*functional).is_pointwise;
}

// An operator that returns the gradient of the argument `self`, as its name and schema say.
bool is_gradient_of_self(const OpTraits& traits) {
  constexpr std::string_view kBackward = "_backward";
  const std::string_view name = traits.base_name();
  if (!traits.is_aten || !name.ends_with(kBackward)) {
    return false;
  }
  const auto op = c10::Dispatcher::singleton().findSchema({traits.name, traits.overload});
  if (!op || op->schema().returns().size() != 1) {
    return false;
  }
  const std::vector<c10::Argument>& arguments = op->schema().arguments();
  return op->schema().returns()[0].type()->kind() == c10::TypeKind::TensorType &&
      std::any_of(arguments.begin(), arguments.end(), [](const c10::Argument& argument) {
           return argument.name() == "self" && argument.type()->kind() == c10::TypeKind::TensorType;
         });
}

SymbolicRules find_rule(const OpTraits& traits) {
  thread_local ska::flat_hash_map<const OpTraits*, SymbolicRules> known;
  if (const auto found = known.find(&traits); found != known.end()) {
    return found->second;
  }
  SymbolicRules rules;
  const std::string_view library = std::string_view(traits.name).substr(0, traits.name.find("::"));
  for (const c10::ArrayRef<Row> rows : {c10::ArrayRef<Row>(kRows), views(), rearrangements(), decompositions()}) {
    for (const Row& row : rows) {
      if (traits.is_aten && names_operator(row.names, library, traits.base_name(), traits.overload)) {
        rules = {row.rule, row.use};
      }
    }
  }
  const bool is_optimizer = traits.is_aten && traits.base_name().substr(0, 7) == "_fused_";
  if (rules.rule == nullptr && (traits.is_foreach || is_optimizer)) {
    rules = {&element_by_element, Use::kHintsOnly};
  } else if (rules.rule == nullptr && traits.is_aten && is_pointwise(traits)) {
    rules = {&pointwise, Use::kFresh};
  } else if (rules.rule == nullptr && is_gradient_of_self(traits)) {
    // The sizes of the other arguments are checked by the kernel, if it takes symbols.
    rules = {&like_self, Use::kFresh, /*after_kernels=*/true};
  }
  known.emplace(&traits, rules);
  return rules;
}

[[maybe_unused]] const bool g_is_set = (set_symbolic_rules(&find_rule), true);

}  // namespace

}  // namespace symbolic_rules

}  // namespace torchfake
