// The outputs of a symbolic call, as set by rules. See Note [Symbolic calls].
#include <torchfake/dispatch/hint_call.h>
#include <torchfake/dispatch/symbolic_call.h>

#include <algorithm>

namespace torchfake {

int SymbolicCall::arg_named(std::string_view name) const {
  const std::vector<c10::Argument>& arguments = call.op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() == name) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

c10::SymInt SymbolicCall::integer(size_t index) const {
  return arg(index).toSymInt();
}

SymbolicCall::Sizes SymbolicCall::integers(size_t index) const {
  Sizes result;
  for (const c10::IValue& element : arg(index).toListRef()) {
    result.push_back(element.toSymInt());
  }
  return result;
}

namespace {

// The dimensions, innermost in memory first.
c10::SmallVector<int64_t, 5> by_stride(c10::ArrayRef<int64_t> sizes, c10::ArrayRef<int64_t> strides) {
  c10::SmallVector<int64_t, 5> order;
  for (int64_t dim = static_cast<int64_t>(strides.size()) - 1; dim >= 0; --dim) {
    order.push_back(dim);
  }
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    // A dimension of size zero counts like one of size one.
    const auto key = [&](int64_t dim) { return std::make_pair(strides[dim], std::max<int64_t>(sizes[dim], 1)); };
    return key(a) < key(b);
  });
  return order;
}

// A number if the known facts determine it.
c10::SymInt plain(const c10::SymInt& value) {
  const std::optional<int64_t> number = value.maybe_as_int();
  return number ? c10::SymInt(*number) : value;
}

c10::SymDimVector plain(c10::SymIntArrayRef values) {
  c10::SymDimVector result;
  for (const c10::SymInt& value : values) {
    result.push_back(plain(value));
  }
  return result;
}

}  // namespace

void SymbolicCall::set_output(size_t index, c10::SymIntArrayRef sizes) {
  if (index >= outputs.size()) {
    return;
  }
  const at::Tensor& output = outputs[index];
  if (!output.defined() || static_cast<size_t>(output.dim()) != sizes.size()) {
    return;
  }
  if (index < same_as.size() && same_as[index] != nullptr) {
    return set_geometry(index, sizes, same_as[index]->sym_strides(), same_as[index]->sym_storage_offset());
  }
  Sizes strides(sizes.size());
  c10::SymInt stride = 1;
  for (const int64_t dim : by_stride(output.sizes(), output.strides())) {
    strides[dim] = stride;
    stride = sizes[dim].maybe_as_int() == std::optional<int64_t>(0) ? stride : stride * sizes[dim];
  }
  set_geometry(index, sizes, strides, 0);
  const auto is_small = [](int64_t number) { return number <= 1; };
  if (output.numel() == 0 && !fits(index) && std::all_of(output.strides().begin(), output.strides().end(), is_small)) {
    // For pointwise operators, strides of dimensions outside an empty one are zero.
    set_geometry(index, sizes, c10::fromIntArrayRefSlow(output.strides()), 0);
  }
}

void SymbolicCall::set_geometry(
    size_t index,
    c10::SymIntArrayRef sizes,
    c10::SymIntArrayRef strides,
    const c10::SymInt& offset) {
  geometries.resize(std::max(geometries.size(), index + 1));
  geometries[index] = Geometry{plain(sizes), plain(strides), plain(offset)};
}

bool SymbolicCall::fits(size_t index) const {
  const std::optional<Geometry> geometry = index < geometries.size() ? geometries[index] : std::nullopt;
  if (!geometry) {
    return false;
  }
  if (index >= outputs.size()) {
    return true;  // a call without hints has no outputs to compare with
  }
  const at::Tensor& output = outputs[index];
  return hints_of(geometry->sizes) == std::optional(output.sizes().vec()) &&
      hints_of(geometry->strides) == std::optional(output.strides().vec()) &&
      hint_of(geometry->offset) == std::optional(output.storage_offset());
}

bool SymbolicCall::is_complete() const {
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].defined() && !fits(i)) {
      return false;
    }
  }
  return true;
}

void SymbolicCall::set_outputs(c10::SymIntArrayRef sizes) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    set_output(i, sizes);
  }
}

void SymbolicCall::guard_stride_order() const {
  for (const TensorArg& tensor : call.tensors()) {
    if (!tensor.impl->has_symbolic_sizes_strides()) {
      continue;
    }
    const c10::SymIntArrayRef strides = tensor.impl->sym_strides();
    const std::optional<std::vector<int64_t>> sizes = hints_of(tensor.impl->sym_sizes());
    const std::optional<std::vector<int64_t>> hints = hints_of(strides);
    if (!sizes || !hints) {
      continue;
    }
    const c10::SmallVector<int64_t, 5> order = by_stride(*sizes, *hints);
    for (size_t i = 1; i < order.size(); ++i) {
      // Strides of zero (expanded dimensions) and one are numbers; the order of the others is guarded. For unbacked
      // symbols it is the order of the examples.
      strides[order[i - 1]].sym_le(strides[order[i]]).guard_or_true(__FILE__, __LINE__);
    }
  }
}

}  // namespace torchfake
