// The dtypes that the real kernels of a device refuse.
#include <torchfake/rules/refused_dtypes.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/TypeProperties.h>

#include <torchfake/core/call.h>

#include <algorithm>
#include <sstream>
#include <string_view>
#include <unordered_set>

namespace torchfake {

namespace {

bool contains(DtypeSet set, c10::ScalarType dtype) {
  return (set >> static_cast<int>(dtype) & 1) != 0;
}

// Whether promoteTypes supports it.
bool promotes(c10::ScalarType dtype) {
  return !c10::isFloat8Type(dtype) && !c10::isBarebonesUnsignedType(dtype) && !c10::isBitsType(dtype);
}

// The rows of an operator, which are adjacent.
c10::ArrayRef<RefusedDtypes> rows_of(c10::DeviceType device, const std::string& op) {
  const c10::ArrayRef<RefusedDtypes> all = refused_dtypes(device);
  const auto is_before = [](const RefusedDtypes& row, const std::string& name) {
    return row.op < std::string_view(name);
  };
  const auto* first = std::lower_bound(all.begin(), all.end(), op, is_before);
  const auto* last = first;
  while (last != all.end() && op == last->op) {
    ++last;
  }
  return {first, last};
}

// Whether a number has a higher category than tensors of a dtype, and therefore promotes them.
bool promotes(const c10::IValue& number, c10::ScalarType dtype) {
  if (!number.isScalar()) {
    return false;
  }
  const c10::ScalarType type = number.toScalar().type();
  const auto kind = [](c10::ScalarType of) {
    return c10::isComplexType(of) ? 3 : c10::isFloatingType(of) ? 2 : of == c10::kBool ? 0 : 1;
  };
  return kind(type) > kind(dtype);
}

// Integer outputs of a computation: indices, pivots.
bool is_index(c10::ScalarType dtype, c10::ScalarType computed) {
  return (dtype == c10::kLong || dtype == c10::kInt) && !c10::isIntegralType(computed, /*includeBool=*/true);
}

}  // namespace

// The tensors of a call by argument: their dtypes, and whether the record covers them.
class DtypeRefusals::Operands {
 public:
  Operands(const Call& call, bool looks_at_empty)
      : tensors_(call.num_args(), nullptr), looks_at_empty_(looks_at_empty) {
    for (const TensorArg& tensor : call.tensors()) {
      const TensorArg*& seen = tensors_[tensor.arg];
      if (seen != nullptr && dtype_of(*seen) != dtype_of(tensor)) {
        comparable_ = false;
      }
      seen = &tensor;
    }
  }

  bool has(size_t argument) const {
    return tensors_[argument] != nullptr;
  }
  const TensorArg& at(size_t argument) const {
    return *tensors_[argument];
  }
  c10::ScalarType dtype(size_t argument) const {
    return dtype_of(at(argument));
  }
  bool comparable(const std::vector<size_t>& arguments) const {
    return comparable_ && std::all_of(arguments.begin(), arguments.end(), [&](size_t i) {
             const c10::TensorImpl& impl = *at(i).impl;
             return (impl.numel() > 0 || at(i).is_out || looks_at_empty_) && !impl.is_wrapped_number();
           });
  }
  // Whether scalars of another dtype are mixed with larger tensors, to whose dtype they may be cast.
  bool has_scalars_beside(const std::vector<size_t>& arguments) const {
    const bool scalars = at(arguments.front()).impl->dim() == 0;
    return std::any_of(arguments.begin(), arguments.end(), [&](size_t i) {
      return (at(i).impl->dim() == 0) != scalars && dtype(i) != dtype(arguments.front());
    });
  }
  bool can_promote(const std::vector<size_t>& arguments) const {
    return std::all_of(arguments.begin(), arguments.end(), [&](size_t i) { return promotes(dtype(i)); });
  }
  // The common dtype to which they are cast, if the operator promotes types.
  c10::ScalarType promoted(const std::vector<size_t>& arguments) const {
    at::native::ResultTypeState state = {};
    for (const size_t i : arguments) {
      state = at::native::update_result_type_state(tensor_at(i), state);
    }
    return at::native::result_type(state);
  }

 private:
  at::Tensor tensor_at(size_t argument) const {
    return at::Tensor(c10::intrusive_ptr<c10::TensorImpl>::unsafe_reclaim_from_nonowning(at(argument).impl));
  }
  static c10::ScalarType dtype_of(const TensorArg& tensor) {
    return c10::typeMetaToScalarType(tensor.impl->dtype());
  }

  std::vector<const TensorArg*> tensors_;
  bool looks_at_empty_;
  bool comparable_ = true;
};

namespace {

const char* kernel_without(const RefusedDtypes& record, c10::ScalarType dtype) {
  for (const RefusedAlone& refused : record.alone) {
    if (contains(refused.dtypes, dtype)) {
      return refused.kernel;
    }
  }
  return nullptr;
}

std::string recorded_with(c10::Device device, bool beside) {
  return c10::str(", as recorded with PyTorch ", refused_dtypes_release(device.type(), beside));
}

void check_implemented(const Call& call, const RefusedDtypes& record, c10::ScalarType dtype, c10::Device device) {
  const char* kernel = kernel_without(record, dtype);
  TORCH_CHECK_NOT_IMPLEMENTED(
      kernel == nullptr,
      '"',
      kernel,
      "\" not implemented for '",
      dtype,
      "' (",
      call.op_name(),
      " on ",
      c10::DeviceTypeName(device.type(), /*lower_case=*/true),
      recorded_with(device, /*beside=*/false),
      ')');
}

// Whether the kernel is selected by dtype before any check for empty tensors.
bool looks_at_empty(const c10::OperatorHandle& op) {
  static const std::unordered_set<std::string> kOthers = {"aten::dot", "aten::vdot", "aten::avg_pool3d"};
  return op.hasTag(at::Tag::pointwise) || kOthers.count(op.schema().name()) > 0;
}

}  // namespace

void DtypeRefusals::add(const RefusedDtypes& record, const c10::FunctionSchema& schema, std::vector<Row>& rows) {
  Row row{{}, &record};
  std::istringstream names(record.arguments);
  for (std::string name; std::getline(names, name, ',');) {
    const std::optional<int> index = schema.argumentIndexWithName(name);
    if (!index) {
      return;  // from a release with a different schema
    }
    row.arguments.push_back(*index);
  }
  rows.push_back(std::move(row));
}

namespace {

bool is_out(const c10::Argument& argument) {
  return argument.kwarg_only() && argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

// For "aten::sort.values_stable", "aten::sort.stable": the overload with the arguments of the out= form except the
// tensors to write to. Empty if there is none.
std::string plain_form(const c10::FunctionSchema& out_form) {
  std::vector<std::string> read;
  for (const c10::Argument& argument : out_form.arguments()) {
    if (!is_out(argument)) {
      read.push_back(argument.name());
    }
  }
  if (read.size() == out_form.arguments().size()) {
    return "";
  }
  const auto matches = [&](const c10::FunctionSchema& schema) {
    return std::equal(
        read.begin(),
        read.end(),
        schema.arguments().begin(),
        schema.arguments().end(),
        [](const std::string& name, const c10::Argument& argument) { return name == argument.name(); });
  };
  // By overload naming conventions: out, result, values for the unnamed overload; dim_out, Tensor_out for dim, Tensor.
  const std::string& overload = out_form.overload_name();
  for (const std::string& candidate : {overload.substr(0, overload.rfind('_')), std::string()}) {
    const auto plain = c10::Dispatcher::singleton().findSchema({out_form.name(), candidate});
    if (candidate != overload && plain && matches(plain->schema())) {
      return c10::toString(plain->schema().operator_name());
    }
  }
  return "";
}

c10::TypeKind kind_of(const c10::Argument& argument) {
  c10::TypePtr type = argument.real_type();
  if (auto optional = type->cast<c10::OptionalType>()) {
    type = optional->getElementType();
  }
  return type->kind();
}

}  // namespace

const DtypeRefusals* DtypeRefusals::of(const c10::OperatorHandle& handle) {
  const c10::FunctionSchema& schema = handle.schema();
  std::string op = c10::toString(schema.operator_name());
  const auto has_records = [&] { return !rows_of(c10::kCPU, op).empty() || !rows_of(c10::kCUDA, op).empty(); };
  const bool has_own = has_records();
  if (!has_own) {
    op = plain_form(schema);
    if (!has_records()) {
      return nullptr;
    }
  }
  const c10::ArrayRef<RefusedDtypes> cpu = rows_of(c10::kCPU, op);
  const c10::ArrayRef<RefusedDtypes> cuda = rows_of(c10::kCUDA, op);
  auto* made = new DtypeRefusals();
  made->looks_at_empty_ = looks_at_empty(handle);
  for (const RefusedDtypes& record : cpu) {
    made->add(record, schema, made->cpu_);
  }
  for (const RefusedDtypes& record : cuda) {
    made->add(record, schema, made->cuda_);
  }
  const bool takes_numbers = schema.overload_name().find("Scalar") != std::string::npos;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    if (kind_of(argument) == c10::TypeKind::ScalarTypeType) {
      made->dtype_args_.push_back(i);
    } else if (kind_of(argument) == c10::TypeKind::StringType) {
      made->method_args_.push_back(i);
    } else if (takes_numbers && kind_of(argument) == c10::TypeKind::NumberType && argument.name() != "alpha") {
      made->number_args_.push_back(i);
    } else if (!has_own && is_out(argument)) {
      made->outs_.push_back(i);
    }
  }
  return made;
}

bool DtypeRefusals::can_speak(const Call& call) const {
  const auto is_given = [&](size_t i) { return !call.arg(i).isNone(); };
  return std::none_of(dtype_args_.begin(), dtype_args_.end(), is_given) &&
      std::all_of(method_args_.begin(), method_args_.end(), is_given);
}

// The row for exactly the tensors that are given: without a bias, the row without one. Null if there is none.
const DtypeRefusals::Row* DtypeRefusals::find_row(const std::vector<Row>& rows, const Operands& operands) {
  const auto* found = std::find_if(rows.data(), rows.data() + rows.size(), [&](const Row& row) {
    return std::all_of(rows.begin(), rows.end(), [&](const Row& any) {
      return std::all_of(any.arguments.begin(), any.arguments.end(), [&](size_t i) {
        return operands.has(i) == (std::count(row.arguments.begin(), row.arguments.end(), i) > 0);
      });
    });
  });
  return found == rows.data() + rows.size() ? nullptr : found;
}

// Whether the record covers a call whose first tensor has this dtype, given its numbers and out= arguments.
bool DtypeRefusals::covers(const Call& call, const Operands& operands, c10::ScalarType first) const {
  return std::none_of(
             number_args_.begin(), number_args_.end(), [&](size_t i) { return promotes(call.arg(i), first); }) &&
      std::all_of(outs_.begin(), outs_.end(), [&](size_t i) {
           return operands.has(i) && (operands.dtype(i) == first || is_index(operands.dtype(i), first));
         });
}

void DtypeRefusals::check(const Call& call, c10::Device device) const {
  const std::vector<Row>& rows = device.is_cpu() ? cpu_ : cuda_;
  if (rows.empty() || (!device.is_cpu() && !device.is_cuda()) || !can_speak(call)) {
    return;
  }
  const Operands operands(call, looks_at_empty_);
  const Row* row = find_row(rows, operands);
  if (row == nullptr || !operands.comparable(row->arguments)) {
    return;
  }
  const c10::ScalarType first = operands.dtype(row->arguments.front());
  if (!covers(call, operands, first)) {
    return;
  }
  // The record covers combinations of tensors of one kind. With scalars mixed in, it only covers the dtype to which all
  // are cast.
  if (operands.has_scalars_beside(row->arguments)) {
    if (call.op.hasTag(at::Tag::pointwise) && operands.can_promote(row->arguments)) {
      check_implemented(call, *row->record, operands.promoted(row->arguments), device);
    }
    return;
  }
  size_t differing = 0;
  size_t last = 0;
  bool alike = true;  // whether those that differ from the first have the same dtype
  for (const size_t i : row->arguments) {
    if (operands.dtype(i) != first) {
      alike &= differing == 0 || operands.dtype(i) == operands.dtype(last);
      ++differing;
      last = i;
    }
  }
  if (differing == 0) {
    return check_implemented(call, *row->record, first, device);
  }
  const bool all_others = differing > 1 && differing + 1 == row->arguments.size() && alike;
  if (differing == 1 || all_others) {
    check_combination(call, operands, *row, last, all_others, device);
  }
}

// Throws if the first tensor's dtype is refused together with that of argument `differing`, which `all_others` share.
void DtypeRefusals::check_combination(
    const Call& call,
    const Operands& operands,
    const Row& row,
    size_t differing,
    bool all_others,
    c10::Device device) {
  const RefusedDtypes& record = *row.record;
  const c10::ScalarType first = operands.dtype(row.arguments.front());
  const c10::ScalarType other = operands.dtype(differing);
  // The record does not cover dtypes that cannot be promoted.
  if (call.op.hasTag(at::Tag::pointwise) && (!promotes(first) || !promotes(other))) {
    return;
  }
  const c10::ScalarType promoted = promotes(first) && promotes(other) ? c10::promoteTypes(first, other) : first;
  // If the first dtype alone is not implemented, no combinations with it were recorded; the promoted dtype may not be
  // implemented either.
  if (kernel_without(record, first) != nullptr) {
    check_implemented(call, record, promoted, device);
  }
  const std::string& argument = all_others ? "" : call.op.schema().arguments()[differing].name();
  for (const RefusedBeside& refused : record.beside) {
    const bool about_first = refused.first == first || refused.first == c10::ScalarType::Undefined;
    if (about_first && argument == refused.argument && contains(refused.dtypes, other)) {
      check_implemented(call, record, promoted, device);
      TORCH_CHECK(
          false,
          call.op_name(),
          ": ",
          call.describe(operands.at(differing)),
          " is ",
          other,
          " beside ",
          call.describe(operands.at(row.arguments.front())),
          " that is ",
          first,
          ", and the kernels for ",
          c10::DeviceTypeName(device.type(), /*lower_case=*/true),
          " expect the same dtype",
          recorded_with(device, /*beside=*/true),
          "; convert one of them with .to().");
    }
  }
}

}  // namespace torchfake
