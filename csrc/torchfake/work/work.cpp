// The work of a call: what follows from the sizes of its tensors, plus what the operator's row adds.
#include <torchfake/work/work.h>

#include <ATen/core/Tensor.h>
#include <c10/util/flat_hash_map.h>

#include <algorithm>
#include <limits>
#include <string>

namespace torchfake::work {

namespace {

ska::flat_hash_map<std::string, OperatorWork>& table() {
  static auto* table = new ska::flat_hash_map<std::string, OperatorWork>();
  return *table;
}

template <typename F>
void for_each_tensor(const c10::IValue& value, const F& f) {
  if (value.isTensor()) {
    // Numbers next to tensors are passed as kernel arguments.
    if (const at::Tensor& tensor = value.toTensor();
        tensor.defined() && !tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
      f(*tensor.unsafeGetTensorImpl());
    }
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) {
      for_each_tensor(element, f);
    }
  }
}

const c10::StorageImpl* storage_of(const c10::TensorImpl& tensor) {
  return tensor.has_storage() ? tensor.unsafe_storage().unsafeGetStorageImpl() : nullptr;
}

bool is_overwritten(const OpTraits& traits, size_t arg) {
  return traits.args[arg].is_out || (arg == 0 && traits.values == ValueSource::kOverwrite);
}

// The bytes that a call reads and writes, and on which devices.
struct Moved {
  int64_t read = 0;
  int64_t written = 0;
  int64_t outputs = 0;  // elements
  bool on_host = false;
  bool on_card = false;
  c10::Device device{c10::kCPU};
  c10::ScalarType dtype = c10::ScalarType::Undefined;  // of the first floating-point argument
  c10::SmallVector<const c10::StorageImpl*, 8> storages;

  void note(const c10::TensorImpl& tensor) {
    const c10::Device where = tensor.device();
    if (where.is_cpu() || where.is_meta()) {
      on_host |= tensor.dim() > 0;  // a number next to tensors is passed as a kernel argument
    } else if (!on_card) {
      on_card = true;
      device = where;
    }
    const c10::ScalarType type = c10::typeMetaToScalarType(tensor.dtype());
    if (dtype == c10::ScalarType::Undefined && (c10::isFloatingType(type) || c10::isComplexType(type))) {
      dtype = type;
    }
  }
};

void read_arguments(const FinishedCall& call, Moved& moved) {
  const bool takes_shape_only = call.traits.takes_shape_only || call.traits.is_factory_like;
  for (size_t i = 0; i < call.arguments.size(); ++i) {
    for_each_tensor(call.arguments[i], [&](const c10::TensorImpl& tensor) {
      moved.note(tensor);
      moved.storages.push_back(storage_of(tensor));
      const int64_t nbytes = bytes_of(tensor);
      if (call.traits.args[i].is_written) {
        moved.written += nbytes;
        moved.outputs += distinct_elements(tensor);
      }
      moved.read += takes_shape_only || is_overwritten(call.traits, i) ? 0 : nbytes;
    });
  }
}

void read_outputs(const FinishedCall& call, Moved& moved) {
  for (const c10::IValue& output : call.outputs) {
    for_each_tensor(output, [&](const c10::TensorImpl& tensor) {
      moved.note(tensor);
      const c10::StorageImpl* storage = storage_of(tensor);
      if (std::find(moved.storages.begin(), moved.storages.end(), storage) == moved.storages.end()) {
        moved.written += bytes_of(tensor);
        moved.outputs += distinct_elements(tensor);
      }
    });
  }
}

Family family_of(const OpTraits& traits) {
  if (traits.is_collective) {
    return Family::kCollective;
  }
  if (traits.is_foreach) {
    return Family::kOptimizer;
  }
  return traits.is_pointwise || traits.values == ValueSource::kOverwrite || traits.values == ValueSource::kConstant
      ? Family::kElementwise
      : Family::kOther;
}

}  // namespace

std::string_view to_string(Family family) {
  constexpr std::string_view kNames[kFamilies] = {
      "elementwise",
      "reduction",
      "normalization",
      "indexing",
      "optimizer",
      "matmul",
      "convolution",
      "attention",
      "recurrent",
      "transfer",
      "collective",
      "other"};
  return kNames[static_cast<size_t>(family)];
}

int64_t saturating_product(int64_t a, int64_t b) {
  int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<int64_t>::max() : product;
}

int64_t distinct_elements(const c10::TensorImpl& tensor) {
  int64_t count = 1;
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    count = saturating_product(count, tensor.stride(i) == 0 ? std::min<int64_t>(tensor.size(i), 1) : tensor.size(i));
  }
  return count;
}

int64_t bytes_of(const c10::TensorImpl& tensor) {
  return saturating_product(distinct_elements(tensor), static_cast<int64_t>(tensor.itemsize()));
}

const c10::IValue* FinishedCall::find(const char* name) const {
  const std::optional<int> index = schema.argumentIndexWithName(name);
  return index && !arguments[*index].isNone() ? &arguments[*index] : nullptr;
}

const c10::TensorImpl* FinishedCall::find_tensor(const char* name) const {
  const c10::IValue* value = find(name);
  return value != nullptr && value->isTensor() && value->toTensor().defined() ? value->toTensor().unsafeGetTensorImpl()
                                                                              : nullptr;
}

const c10::TensorImpl* FinishedCall::output() const {
  return !outputs.empty() && outputs[0].isTensor() && outputs[0].toTensor().defined()
      ? outputs[0].toTensor().unsafeGetTensorImpl()
      : nullptr;
}

bool has_symbolic_sizes(const FinishedCall& call) {
  bool found = false;
  for (const auto values : {call.arguments, call.outputs}) {
    for (const c10::IValue& value : values) {
      for_each_tensor(value, [&](const c10::TensorImpl& tensor) {
        found |= tensor.layout() != c10::kStrided || tensor.has_symbolic_sizes_strides();
      });
    }
  }
  return found;
}

void register_operator_work(std::string_view name, OperatorWork work) {
  table()[std::string(name)] = work;
}

Work work_of(const FinishedCall& call) {
  Moved moved;
  read_arguments(call, moved);
  read_outputs(call, moved);
  Work work;
  work.device = moved.device;
  work.dtype = moved.dtype;
  const bool only_metadata = moved.written == 0 || call.traits.values == ValueSource::kUninitialised ||
      (call.traits.changes_geometry && !call.traits.has_out);
  const bool answers_number = !call.traits.returns_tensors && call.outputs.size() == 1 && !call.outputs[0].isTensor();
  if (only_metadata && !(answers_number && moved.read > 0) && !call.traits.is_collective) {
    return work;
  }
  work.family = family_of(call.traits);
  work.nbytes = moved.read + moved.written;
  work.outputs = moved.outputs;
  work.launches = 1;
  if (moved.on_card && moved.on_host && !call.traits.is_collective) {
    work.family = Family::kTransfer;
    work.traffic = std::max(moved.read, moved.written);
  }
  if (const auto row = table().find(call.traits.name); row != table().end()) {
    work.family = work.family == Family::kTransfer ? work.family : row->second.family;
    if (row->second.complete != nullptr) {
      row->second.complete(call, work);
    }
  }
  return work;
}

}  // namespace torchfake::work
