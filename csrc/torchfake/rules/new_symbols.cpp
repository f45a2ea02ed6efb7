// Operators whose sizes or values depend on data: their results in terms of new symbols.
#include <ATen/ExpandUtils.h>
#include <ATen/InferSize.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index.h>
#include <ATen/ops/nonzero.h>

#include <torchfake/dispatch/new_symbols.h>
#include <torchfake/rules/operator_table.h>
#include <torchfake/values/known_values.h>

namespace torchfake {

namespace {

using Sizes = c10::SymDimVector;
using Outputs = std::optional<std::vector<c10::IValue>>;

at::Tensor empty(const at::Tensor& like, c10::SymIntArrayRef sizes, c10::ScalarType dtype) {
  return at::empty_symint(sizes, at::TensorOptions().dtype(dtype).device(as_fake(like)->claimed_device()));
}

Sizes sizes_of(const at::Tensor& tensor) {
  const c10::SymIntArrayRef sizes = tensor.sym_sizes();
  return Sizes(sizes.begin(), sizes.end());
}

std::optional<int64_t> known_count(const at::Tensor& tensor) {
  return tensor.sym_numel().maybe_as_int();
}

// The lower bound of a search result: 1 if the tensor is known to be nonempty, otherwise 0.
int64_t least_found(const at::Tensor& tensor) {
  const c10::SymInt count = tensor.sym_numel();
  return count.sym_ge(1).statically_known_true(__FILE__, __LINE__) ? 1 : 0;
}

bool is_mask(const at::Tensor& tensor) {
  return tensor.defined() && (tensor.scalar_type() == c10::kBool || tensor.scalar_type() == c10::kByte);
}

bool is_unknown(const NewSymbolsCall& call, const at::Tensor& tensor) {
  const FakeTensorImpl* fake = as_fake(tensor);
  return fake != nullptr && (fake->has_symbolic_sizes_strides() || !is_known(*fake, value_limit(call.mode->options)));
}

// One column per dimension, contiguous in memory, and one row per element found.
at::Tensor found_in(const at::Tensor& self, const c10::SymInt& count) {
  return empty(self, {c10::SymInt(self.dim()), count}, c10::kLong).t();
}

Outputs nonzero(NewSymbolsCall& call) {
  const at::Tensor self = call.tensor(0);
  return {{found_in(self, call.remembered_size(0, known_count(self)))}};
}

Outputs item(NewSymbolsCall& call) {
  const c10::ScalarType dtype = call.tensor(0).scalar_type();
  if (c10::isComplexType(dtype)) {
    return std::nullopt;
  }
  const ValueType type = c10::isFloatingType(dtype) ? ValueType::kFloat
      : dtype == c10::kBool                         ? ValueType::kBool
                                                    : ValueType::kInt;
  return {{call.remembered_value(type)}};
}

// Adds inverse and counts, empty if they were not requested.
void add_inverse_and_counts(
    std::vector<c10::IValue>& outputs,
    const at::Tensor& self,
    const Sizes& inverse,
    bool wants_inverse,
    const c10::SymInt& count,
    bool wants_counts) {
  outputs.emplace_back(empty(self, wants_inverse ? inverse : Sizes{0}, c10::kLong));
  outputs.emplace_back(empty(self, wants_counts ? Sizes{count} : Sizes{0}, c10::kLong));
}

// Over all elements: (self, ...), with the flags at these arguments; -1 if there is no such argument.
Outputs unique_elements(NewSymbolsCall& call, int inverse_arg, int counts_arg) {
  const at::Tensor self = call.tensor(0);
  const c10::SymInt count = call.remembered_size(least_found(self), known_count(self));
  std::vector<c10::IValue> outputs{empty(self, {count}, self.scalar_type())};
  const bool wants_counts = counts_arg >= 0 && call.call.arg(counts_arg).toBool();
  add_inverse_and_counts(outputs, self, sizes_of(self), call.call.arg(inverse_arg).toBool(), count, wants_counts);
  if (counts_arg < 0) {
    outputs.pop_back();
  }
  return outputs;
}

// Along one dimension.
Outputs unique_slices(NewSymbolsCall& call, int64_t dim, int inverse_arg, int counts_arg) {
  const at::Tensor self = call.tensor(0);
  dim = c10::maybe_wrap_dim(dim, self.dim());
  const c10::SymInt size = self.sym_size(dim);
  const int64_t least = size.sym_ge(1).statically_known_true(__FILE__, __LINE__) ? 1 : 0;
  const c10::SymInt count = call.new_size(least, size.maybe_as_int());  // of this dimension, not of the tensor
  // The slices come first in memory.
  Sizes sizes = sizes_of(self);
  sizes.erase(sizes.begin() + dim);
  sizes.insert(sizes.begin(), count);
  std::vector<c10::IValue> outputs{empty(self, sizes, self.scalar_type()).movedim(0, dim)};
  add_inverse_and_counts(
      outputs, self, {size}, call.call.arg(inverse_arg).toBool(), count, call.call.arg(counts_arg).toBool());
  return outputs;
}

// (self, sorted, return_inverse)
Outputs unique(NewSymbolsCall& call) {
  return unique_elements(call, 2, -1);
}

// (self, sorted, return_inverse, return_counts)
Outputs unique2(NewSymbolsCall& call) {
  return unique_elements(call, 2, 3);
}

// (self, dim, sorted, return_inverse, return_counts)
Outputs unique_dim(NewSymbolsCall& call) {
  return unique_slices(call, call.call.arg(1).toInt(), 3, 4);
}

// (self, return_inverse, return_counts, dim)
Outputs unique_consecutive(NewSymbolsCall& call) {
  return call.call.arg(3).isNone() ? unique_elements(call, 1, 2) : unique_slices(call, call.call.arg(3).toInt(), 1, 2);
}

// (self, dim, return_inverse, return_counts)
Outputs unique_dim_consecutive(NewSymbolsCall& call) {
  return unique_slices(call, call.call.arg(1).toInt(), 2, 3);
}

// (self, mask)
Outputs masked_select(NewSymbolsCall& call) {
  const at::Tensor self = call.tensor(0);
  const at::Tensor mask = call.tensor(1);
  if (mask.scalar_type() != c10::kBool || !is_unknown(call, mask)) {
    return std::nullopt;
  }
  c10::SymInt count = 1;
  for (const c10::SymInt& size : at::infer_size_symdimvector(self.sym_sizes(), mask.sym_sizes())) {
    count = count * size;
  }
  return {{empty(self, {call.new_size(0, count.maybe_as_int())}, self.scalar_type())}};
}

// (repeats, output_size)
Outputs repeat_interleave(NewSymbolsCall& call) {
  const at::Tensor repeats = call.tensor(0);
  if (!call.call.arg(1).isNone()) {
    return {{empty(repeats, {call.call.arg(1).toSymInt()}, repeats.scalar_type())}};
  }
  return {{empty(repeats, {call.new_size(0, std::nullopt)}, repeats.scalar_type())}};
}

// (self, weights, minlength)
Outputs bincount(NewSymbolsCall& call) {
  const at::Tensor self = call.tensor(0);
  if (self.dim() != 1 || !c10::isIntegralType(self.scalar_type(), /*includeBool=*/false)) {
    return std::nullopt;
  }
  const c10::SymInt least = call.call.arg(2).toSymInt();
  const bool has_weights = !call.call.arg(1).isNone() && call.tensor(1).defined();
  const c10::ScalarType dtype = !has_weights        ? c10::kLong
      : call.tensor(1).scalar_type() == c10::kFloat ? c10::kFloat
                                                    : c10::kDouble;
  return {{empty(self, {call.new_size(least.maybe_as_int().value_or(0), std::nullopt)}, dtype)}};
}

// (self, indices): a mask is replaced by the indices of the elements it selects.
Outputs index(NewSymbolsCall& call) {
  const at::Tensor self = call.tensor(0);
  bool has_unknown = false;
  for (const std::optional<at::Tensor>& each : call.call.arg(1).toOptionalTensorVector()) {
    has_unknown |= each && is_mask(*each) && is_unknown(call, *each);
  }
  if (!has_unknown) {
    return std::nullopt;
  }
  c10::List<std::optional<at::Tensor>> indices;
  for (const std::optional<at::Tensor>& each : call.call.arg(1).toOptionalTensorVector()) {
    if (!each || !is_mask(*each)) {
      indices.push_back(each);
      continue;
    }
    const at::Tensor& mask = *each;
    const auto first = static_cast<int64_t>(indices.size());
    for (int64_t dim = 0; dim < mask.dim(); ++dim) {
      TORCH_CHECK_INDEX(
          first + dim < self.dim(),
          "too many indices for tensor of dimension ",
          self.dim(),
          ": a mask has ",
          mask.dim());
      TORCH_CHECK_INDEX(
          mask.sym_size(dim).sym_eq(self.sym_size(first + dim)).expect_true(__FILE__, __LINE__),
          "The shape of the mask ",
          mask.sym_sizes(),
          " at index ",
          dim,
          " does not match the shape of the indexed tensor ",
          self.sym_sizes(),
          " at index ",
          first + dim);
    }
    const at::Tensor found = at::nonzero(mask);
    for (int64_t dim = 0; dim < mask.dim(); ++dim) {
      indices.push_back(found.select(1, dim));
    }
  }
  return {{at::index(self, indices)}};
}

struct Row {
  const char* name;
  NewSymbolsRule rule;
};

constexpr Row kRows[] = {
    {"nonzero", &nonzero},
    {"_local_scalar_dense", &item},
    {"_unique", &unique},
    {"_unique2", &unique2},
    {"unique_dim", &unique_dim},
    {"unique_consecutive", &unique_consecutive},
    {"unique_dim_consecutive", &unique_dim_consecutive},
    {"masked_select", &masked_select},
    {"repeat_interleave.Tensor", &repeat_interleave},
    {"bincount", &bincount},
    {"index.Tensor", &index},
};

NewSymbolsRule find_rule(const OpTraits& traits) {
  if (traits.has_out || !traits.is_aten) {
    return nullptr;
  }
  const std::string_view library = std::string_view(traits.name).substr(0, traits.name.find("::"));
  for (const Row& row : kRows) {
    if (names_operator(row.name, library, traits.base_name(), traits.overload)) {
      return row.rule;
    }
  }
  return nullptr;
}

[[maybe_unused]] const bool g_is_set = (set_new_symbols_rules(&find_rule), true);

}  // namespace

}  // namespace torchfake
