// The key of a call with symbolic sizes. See Note [Symbolic calls].
#include <torchfake/dispatch/symbolic_key.h>

#include <torchfake/core/symbolic_bytes.h>
#include <torchfake/dispatch/hint_call.h>
#include <torchfake/symbolic/errors.h>

#include <bit>

namespace torchfake {

namespace {

enum Mark : uint64_t {
  kSymbolicCall = 0x2000000000000001,
  kSymbolicTensor = 0x2000000000000100,
  kNumber = 0x2000000000000003,
  kNumberList = 0x2000000000000004,
};

Bypass reason_not_to_keep(const Call& call, const ModeState& mode) {
  const OpTraits& traits = call.traits;
  if (!traits.is_builtin) {
    return Bypass::kNotBuiltin;
  }
  if (traits.data_dependent || (traits.dynamic_shape && !traits.is_index)) {
    return Bypass::kDataDependent;
  }
  if (mode.options.recorder || traits.needs_values) {
    return Bypass::kRecorded;
  }
  for (const TensorArg& tensor : call.tensors()) {
    if (tensor.fake == nullptr && !tensor.impl->is_wrapped_number()) {
      return Bypass::kRealTensor;
    }
    if (traits.is_index && tensor.fake != nullptr && traits.args[tensor.arg].kind == ArgKind::kTensorList &&
        is_mask(c10::typeMetaToScalarType(tensor.fake->dtype()))) {
      return Bypass::kDataDependent;
    }
  }
  return Bypass::kNone;
}

}  // namespace

SymbolicKey::SymbolicKey(const Call& call, const ModeState& mode) : bypass_(reason_not_to_keep(call, mode)) {
  key_.add_op(call.traits);
  add_word(kSymbolicCall);
  const TensorArg* next = call.tensors().begin();  // in argument order
  for (size_t i = 0; i < call.num_args(); ++i) {
    const c10::IValue& value = call.arg(i);
    const ArgTraits& facts = call.traits.args[i];
    const auto add_next = [&](size_t element) {
      if (next == call.tensors().end() || next->arg != i || next->element != element) {
        return key_.add_undefined();
      }
      add_tensor(call, *next++);
    };
    if (facts.kind == ArgKind::kTensor && value.isTensor()) {
      add_next(next == call.tensors().end() ? 0 : next->element);
    } else if (facts.kind == ArgKind::kTensorList && value.isList()) {
      const size_t size = value.toListRef().size();
      key_.add_list(size);
      for (size_t element = 0; element < size; ++element) {
        add_next(element);
      }
    } else if (!add_argument(value, facts.scales_only) && bypass_ == Bypass::kNone) {
      bypass_ = Bypass::kArgument;
    }
  }
  add_aliases(call);
  key_.add_settings(call.traits, mode);
  key_.finish();
}

void SymbolicKey::add_tensor(const Call& call, const TensorArg& tensor) {
  const c10::TensorImpl& impl = *tensor.impl;
  if (tensor.fake == nullptr || (!impl.has_symbolic_sizes_strides() && !has_symbolic_bytes(impl))) {
    if (tensor.fake != nullptr || impl.is_wrapped_number()) {
      key_.add_tensor(call.traits, tensor);
    }
    return;
  }
  const c10::Device device = tensor.fake->claimed_device();
  add_word(
      kSymbolicTensor ^ static_cast<uint64_t>(impl.dim()) << 8 ^
      static_cast<uint64_t>(c10::typeMetaToScalarType(impl.dtype())) << 16 ^
      static_cast<uint64_t>(impl.is_wrapped_number()) << 24 ^ static_cast<uint64_t>(device.type()) << 40 ^
      static_cast<uint64_t>(static_cast<uint8_t>(device.index())) << 32);
  add_word(impl.key_set().raw_repr());
  for (const c10::SymInt& size : impl.sym_sizes()) {
    add_size(size);
  }
  for (const c10::SymInt& stride : impl.sym_strides()) {
    add_size(stride);
  }
  if (call.traits.reads_storage) {
    add_size(impl.sym_storage_offset());
    add_size(impl.has_storage() ? impl.unsafe_storage().sym_nbytes() : c10::SymInt(0));
  }
}

// Which inputs share a storage, and at which offsets.
void SymbolicKey::add_aliases(const Call& call) {
  const c10::ArrayRef<TensorArg> tensors = call.tensors();
  if (!call.traits.mutates || tensors.size() < 2) {
    return;
  }
  for (size_t i = 1; i < tensors.size(); ++i) {
    const c10::StorageImpl* storage = storage_of(*tensors[i].impl);
    for (size_t j = 0; j < i && storage != nullptr; ++j) {
      if (storage_of(*tensors[j].impl) == storage) {
        add_word(i << 32 ^ j << 1 ^ static_cast<uint64_t>(tensors[i].impl == tensors[j].impl));
        add_size(tensors[i].impl->sym_storage_offset());
        add_size(tensors[j].impl->sym_storage_offset());
        break;
      }
    }
  }
}

bool SymbolicKey::add_argument(const c10::IValue& value, bool type_only) {
  if (is_symbolic_number(value)) {
    add_word(kNumber);
    if (value.isSymInt()) {
      add_size(value.toSymInt());
    } else {
      add_node(value.isSymFloat() ? value.toSymFloat().toSymNodeImpl().get() : value.toSymBool().toSymNodeImpl().get());
    }
    return true;
  }
  if (is_symbolic_list(value)) {
    const c10::ArrayRef<c10::IValue> list = value.toListRef();
    add_word(kNumberList);
    add_word(list.size());
    return std::all_of(
        list.begin(), list.end(), [&](const c10::IValue& element) { return add_argument(element, type_only); });
  }
  return add_number_or_text(value, type_only);
}

bool SymbolicKey::add_number_or_text(const c10::IValue& value, bool type_only) {
  if (value.isNone()) {
    key_.add_none();
  } else if (value.isBool()) {
    key_.add_bool(value.toBool());
  } else if (type_only && (value.isInt() || value.isDouble())) {
    key_.add_factor(value.isInt());
  } else if (value.isInt()) {
    key_.add_int(value.toInt());
  } else if (value.isDouble()) {
    key_.add_double(value.toDouble());
  } else if (value.isComplexDouble()) {
    key_.add_complex(value.toComplexDouble());
  } else if (value.isDevice()) {
    key_.add_device(value.toDevice());
  } else if (value.isString()) {
    key_.add_string(value.toStringRef());
  } else if (value.isGenerator()) {
    key_.add_generator(value.toGenerator());
  } else if (value.isList() && !value.isTensorList()) {
    const c10::ArrayRef<c10::IValue> list = value.toListRef();
    key_.add_list(list.size());
    return std::all_of(
        list.begin(), list.end(), [&](const c10::IValue& element) { return add_number_or_text(element, type_only); });
  } else {
    return false;
  }
  return true;
}

void SymbolicKey::add_size(const c10::SymInt& value) {
  if (!value.is_heap_allocated()) {
    add_word(static_cast<uint64_t>(value.as_int_unchecked()) << 1);
    return;
  }
  add_node(value.toSymNodeImplUnowned());
}

// Even words encode numbers; odd ones the index of an expression in order of first use, followed by the expression if
// it is new.
void SymbolicKey::add_node(c10::SymNodeImpl* node) {
  SymExprNode* own = as_expr_node(node);
  if (own == nullptr) {
    const std::optional<int64_t> number = node->constant_int();
    if (!number) {
      raise_dynamic_shapes("", "a size among the arguments is a symbol of PyTorch's own; use a torchfake.ShapeEnv.");
    }
    add_word(static_cast<uint64_t>(*number) << 1);
    return;
  }
  const ExprPtr expr = own->expr();
  if (expr->op == Op::kInt) {
    add_word(static_cast<uint64_t>(expr->number) << 1);
    return;
  }
  if (env_ == nullptr) {
    env_ = own->env();
  } else if (env_ != own->env()) {
    raise_dynamic_shapes("", "the arguments have symbols of two ShapeEnvs.");
  }
  for (size_t i = 0; i < numbers_.size(); ++i) {
    if (numbers_[i].expr == expr) {
      add_word(i << 1 | 1);
      return;
    }
  }
  add_word(numbers_.size() << 1 | 1);
  numbers_.push_back({expr, node});
  add_expr(expr);
}

void SymbolicKey::add_expr(ExprPtr expr) {
  if (expr->op == Op::kSymbol) {
    return add_symbol(expr);
  }
  add_word(
      static_cast<uint64_t>(expr->op) | static_cast<uint64_t>(expr->type) << 8 | expr->args.size() << 16 |
      static_cast<uint64_t>(expr->coefficients.size()) << 40);
  add_word(static_cast<uint64_t>(expr->number));
  if (expr->type == ValueType::kFloat) {
    add_word(std::bit_cast<uint64_t>(expr->real));
  }
  for (const int64_t coefficient : expr->coefficients) {
    add_word(static_cast<uint64_t>(coefficient));
  }
  for (const ExprPtr arg : expr->args) {
    add_expr(arg);
  }
}

void SymbolicKey::add_symbol(ExprPtr symbol) {
  size_t index = 0;
  while (index < symbols_.size() && symbols_[index] != symbol) {
    ++index;
  }
  add_word(static_cast<uint64_t>(Op::kSymbol) | index << 16);
  if (index < symbols_.size()) {
    return;
  }
  symbols_.push_back(symbol);
  add_word(static_cast<uint64_t>(symbol->type) | static_cast<uint64_t>(class_of(*env_, symbol)) << 8);
  // The hint is part of the key: the outcome at the hints depends on it, including the order of strides and errors.
  const std::optional<Value> hint = env_->hint(symbol);
  add_word(hint.has_value());
  if (hint) {
    add_word(
        hint->type == ValueType::kFloat ? std::bit_cast<uint64_t>(hint->real) : static_cast<uint64_t>(hint->integer));
  }
}

}  // namespace torchfake
