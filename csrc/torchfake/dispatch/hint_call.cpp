// The arguments of a symbolic call at their hints or, without a hint, at examples. See Note [Symbolic calls].
#include <torchfake/dispatch/hint_call.h>

#include <torchfake/core/symbolic_bytes.h>
#include <torchfake/symbolic/errors.h>

#include <algorithm>

namespace torchfake {

bool is_symbolic_number(const c10::IValue& value) {
  return value.isSymInt() || value.isSymFloat() || value.isSymBool();
}

bool is_symbolic_list(const c10::IValue& value) {
  if (!value.isList() || value.isTensorList() || value.isIntList() || value.isDoubleList()) {
    return false;
  }
  if (value.isSymIntList()) {
    return true;  // even if all symbols have become numbers: kernels take integers
  }
  const c10::ArrayRef<c10::IValue> elements = value.toListRef();
  return std::any_of(elements.begin(), elements.end(), is_symbolic_number);
}

namespace {

std::optional<NumberFor> number_for(const c10::SymInt& value) {
  if (const std::optional<int64_t> number = value.maybe_as_int()) {
    return NumberFor{Value::of(*number), true};
  }
  return torchfake::number_for(value.toSymNodeImplUnowned());
}

}  // namespace

std::optional<int64_t> hint_of(const c10::SymInt& value) {
  const std::optional<NumberFor> number = number_for(value);
  return number ? std::optional(number->value.integer) : std::nullopt;
}

std::optional<std::vector<int64_t>> hints_of(c10::SymIntArrayRef values) {
  std::vector<int64_t> result;
  for (const c10::SymInt& value : values) {
    const std::optional<int64_t> hint = hint_of(value);
    if (!hint) {
      return std::nullopt;
    }
    result.push_back(*hint);
  }
  return result;
}

HintCall::HintCall(const Call& call, StandIns kind) : call_(call), kind_(kind) {
  for (size_t i = 0; i < call.num_args(); ++i) {
    const ArgTraits& facts = call.traits.args[i];
    stack.push_back(number_of(call.arg(i), facts.is_written || facts.is_statistic));
  }
}

at::Tensor HintCall::original_of(const at::Tensor& tensor) const {
  for (const auto& [stand_in, original] : stand_ins_) {
    if (stand_in.is_same(tensor)) {
      return original;
    }
  }
  return tensor;
}

at::Tensor HintCall::base_of(const at::Tensor& tensor) const {
  for (const auto& [stand_in, original] : stand_ins_) {
    if (!stand_in.is_same(tensor) && tensor.is_alias_of(stand_in)) {
      return original;
    }
  }
  return {};
}

void HintCall::settle() const {
  for (const auto& [stand_in, original] : stand_ins_) {
    const bool is_same = hints_of(original.sym_sizes()) == std::optional(stand_in.sizes().vec()) &&
        hints_of(original.sym_strides()) == std::optional(stand_in.strides().vec());
    if (!is_same) {
      raise_dynamic_shapes(call_.op_name(), "the call changes the sizes of a tensor with symbolic sizes.");
    }
    if (kind_ == StandIns::kAliases) {
      continue;
    }
    if (call_.traits.mutates) {
      forget_known_bytes(original.storage().unsafeGetStorageImpl());
    }
    const c10::VariableVersion& version = stand_in.unsafeGetTensorImpl()->version_counter();
    for (uint32_t i = 0; version.enabled() && i < version.current_version(); ++i) {
      original.unsafeGetTensorImpl()->bump_version();
    }
  }
}

Value HintCall::required(const std::optional<NumberFor>& number) {
  if (!number) {
    raise_unbacked_symbol(call_.op_name(), "a size or a number among the arguments has no value that could stand in.");
  }
  has_examples_ |= !number->is_hint;
  return number->value;
}

int64_t HintCall::required(const c10::SymInt& value) {
  return required(number_for(value)).integer;
}

c10::IValue HintCall::number_of(const c10::IValue& value, bool is_written) {
  if (value.isTensor()) {
    return value.toTensor().defined() ? c10::IValue(stand_in_for(value.toTensor(), is_written)) : value;
  }
  if (value.isSymInt()) {
    return required(value.toSymInt());
  }
  if (value.isSymFloat()) {
    return required(torchfake::number_for(value.toSymFloat().toSymNodeImpl().get())).real;
  }
  if (value.isSymBool()) {
    return required(torchfake::number_for(value.toSymBool().toSymNodeImpl().get())).integer != 0;
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      list.push_back(tensor.defined() ? stand_in_for(tensor, is_written) : tensor);
    }
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      list.push_back(tensor && tensor->defined() ? std::optional(stand_in_for(*tensor, is_written)) : tensor);
    }
    return list;
  }
  if (is_symbolic_list(value)) {
    c10::List<int64_t> list;
    for (const c10::IValue& element : value.toListRef()) {
      list.push_back(number_of(element, false).toInt());
    }
    return list;
  }
  return value;
}

at::Tensor HintCall::stand_in_for(const at::Tensor& tensor, bool is_written) {
  const FakeTensorImpl* fake = as_fake(tensor);
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  const bool is_needed =
      impl.has_symbolic_sizes_strides() || has_symbolic_bytes(impl) || (is_written && kind_ == StandIns::kOfWrittenToo);
  if (fake == nullptr || !is_needed) {
    return tensor;
  }
  for (const auto& [stand_in, original] : stand_ins_) {
    if (original.is_same(tensor)) {
      return stand_in;
    }
  }
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    sizes.push_back(required(tensor.sym_size(dim)));
    strides.push_back(required(tensor.sym_stride(dim)));
  }
  const int64_t offset = required(tensor.sym_storage_offset());
  at::Tensor stand_in = make_fake(
      kind_ == StandIns::kAliases ? c10::Storage(tensor.storage())
                                  : storage_like(tensor.storage(), fake->claimed_device()),
      fake->key_set(),
      tensor.dtype(),
      GeometryRef{sizes, strides, offset},
      fake->claimed_device(),
      fake->mode());
  if (kind_ == StandIns::kAliases && !tensor.is_inference()) {
    stand_in.unsafeGetTensorImpl()->set_version_counter(tensor.unsafeGetTensorImpl()->version_counter());
  }
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    stand_in.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  stand_ins_.emplace_back(stand_in, tensor);
  return stand_in;
}

c10::Storage HintCall::storage_like(const c10::Storage& storage, c10::Device device) {
  for (const auto& [original, copy] : storages_) {
    if (original == storage.unsafeGetStorageImpl()) {
      return copy;
    }
  }
  storages_.emplace_back(
      storage.unsafeGetStorageImpl(), new_fake_storage(bytes_now(*storage.unsafeGetStorageImpl()), device, nullptr));
  return storages_.back().second;
}

}  // namespace torchfake
