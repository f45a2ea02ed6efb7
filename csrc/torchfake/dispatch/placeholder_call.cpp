// The arguments of a symbolic call, expressed in placeholders. See Note [Placeholders].
#include <torchfake/dispatch/placeholder_call.h>

#include <c10/util/DimVector.h>

#include <torchfake/core/symbolic_bytes.h>
#include <torchfake/dispatch/hint_call.h>

namespace torchfake {

PlaceholderCall::PlaceholderCall(const Call& call, const Placeholders* placeholders, ModePtr mode)
    : placeholders_(placeholders), mode_(std::move(mode)) {
  for (size_t i = 0; i < call.num_args(); ++i) {
    stack.push_back(argument_for(call.arg(i)));
  }
}

c10::SymInt PlaceholderCall::size_of(const c10::SymInt& value) const {
  if (!value.is_heap_allocated() || placeholders_ == nullptr) {
    return value;
  }
  SymExprNode* node = as_expr_node(value.toSymNodeImplUnowned());
  return node == nullptr ? value : to_sym_int(placeholders_->env(), placeholders_->abstract(node->expr()));
}

// If the operator does not depend on where a tensor lies in its storage, the key of the call does not contain the
// offset. Its symbols may then have no placeholder, and the hint is used instead.
c10::SymInt PlaceholderCall::place_of(const c10::SymInt& value) const {
  SymExprNode* node = value.is_heap_allocated() ? as_expr_node(value.toSymNodeImplUnowned()) : nullptr;
  if (node == nullptr || placeholders_ == nullptr || placeholders_->cover(node->expr())) {
    return size_of(value);
  }
  return hint_of(value).value_or(0);
}

c10::IValue PlaceholderCall::argument_for(const c10::IValue& value) {
  if (value.isTensor()) {
    return value.toTensor().defined() ? c10::IValue(stand_in_for(value.toTensor())) : value;
  }
  if (value.isSymInt()) {
    return size_of(value.toSymInt());
  }
  if (value.isSymFloat() || value.isSymBool()) {
    SymExprNode* node =
        as_expr_node(value.isSymFloat() ? value.toSymFloat().toSymNodeImpl() : value.toSymBool().toSymNodeImpl());
    if (node == nullptr || placeholders_ == nullptr) {
      return value;
    }
    const ExprPtr expr = placeholders_->abstract(node->expr());
    return value.isSymFloat() ? c10::IValue(to_sym_float(placeholders_->env(), expr))
                              : c10::IValue(to_sym_bool(placeholders_->env(), expr));
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      list.push_back(tensor.defined() ? stand_in_for(tensor) : tensor);
    }
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      list.push_back(tensor && tensor->defined() ? std::optional(stand_in_for(*tensor)) : tensor);
    }
    return list;
  }
  if (is_symbolic_list(value)) {
    c10::SymDimVector list;
    for (const c10::IValue& element : value.toListRef()) {
      list.push_back(size_of(element.toSymInt()));
    }
    return c10::SymIntArrayRef(list);
  }
  return value;
}

at::Tensor PlaceholderCall::stand_in_for(const at::Tensor& tensor) {
  const FakeTensorImpl* fake = as_fake(tensor);
  if (fake == nullptr) {
    return tensor;
  }
  for (const auto& [stand_in, original] : stand_ins_) {
    if (original.is_same(tensor)) {
      return stand_in;
    }
  }
  auto impl = c10::make_intrusive<FakeTensorImpl>(
      storage_like(tensor.storage(), fake->claimed_device()),
      fake->key_set(),
      tensor.dtype(),
      fake->claimed_device(),
      mode_);
  c10::SymDimVector sizes;
  c10::SymDimVector strides;
  for (int64_t dim = 0; dim < fake->dim(); ++dim) {
    sizes.push_back(size_of(tensor.sym_size(dim)));
    strides.push_back(size_of(tensor.sym_stride(dim)));
  }
  impl->set_sizes_and_strides(sizes, strides, place_of(tensor.sym_storage_offset()));
  if (fake->is_wrapped_number()) {
    impl->set_wrapped_number(true);
  }
  stand_ins_.emplace_back(at::Tensor(std::move(impl)), tensor);
  return stand_ins_.back().first;
}

// One per storage: which arguments share a storage is part of the call.
c10::Storage PlaceholderCall::storage_like(const c10::Storage& storage, c10::Device device) {
  for (const auto& [original, copy] : storages_) {
    if (original == storage.unsafeGetStorageImpl()) {
      return copy;
    }
  }
  c10::Storage copy = new_fake_storage(bytes_now(*storage.unsafeGetStorageImpl()), device, nullptr);
  if (const c10::SymInt nbytes = place_of(storage.sym_nbytes()); nbytes.is_heap_allocated()) {
    set_symbolic_bytes(copy.unsafeGetStorageImpl(), device, nbytes);
  }
  storages_.emplace_back(storage.unsafeGetStorageImpl(), copy);
  return copy;
}

}  // namespace torchfake
