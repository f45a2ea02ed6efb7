// Temporary memory of CUDA kernels: reading a call's arguments, and one table of all families.
#include <torchfake/rules/side_memory.h>

#include <algorithm>

namespace torchfake::side_memory {

const c10::TensorImpl* tensor_at(const Call& call, size_t arg) {
  for (const TensorArg& tensor : call.tensors()) {
    if (tensor.arg == arg) {
      return tensor.impl->numel() <= kMostElements ? tensor.impl : nullptr;
    }
  }
  return nullptr;
}

std::optional<std::vector<int64_t>> numbers_at(const Call& call, size_t arg, int64_t count, int64_t least) {
  if (!call.arg(arg).isIntList()) {
    return std::nullopt;
  }
  std::vector<int64_t> numbers = call.arg(arg).toIntVector();
  if (numbers.size() == 1) {
    numbers.resize(static_cast<size_t>(count), numbers[0]);
  }
  const bool fits = static_cast<int64_t>(numbers.size()) == count &&
      std::all_of(numbers.begin(), numbers.end(), [&](int64_t n) { return n >= least && n <= kMostInList; });
  return fits ? std::optional(std::move(numbers)) : std::nullopt;
}

std::optional<int64_t> number_at(const Call& call, size_t arg) {
  const c10::IValue& value = call.arg(arg);
  const bool fits = value.isInt() && value.toInt() >= 1 && value.toInt() <= kMostElements;
  return fits ? std::optional(value.toInt()) : std::nullopt;
}

size_t bytes_of(const c10::TensorImpl& tensor) {
  return static_cast<size_t>(tensor.numel()) * tensor.itemsize();
}

size_t accumulator_size(const c10::TensorImpl& tensor) {
  return std::max<size_t>(tensor.itemsize(), at::isFloatingType(c10::typeMetaToScalarType(tensor.dtype())) ? 4 : 8);
}

bool flag_at(const Call& call, size_t arg) {
  return arg < call.num_args() && call.arg(arg).isBool() && call.arg(arg).toBool();
}

bool mask_at(const Call& call, size_t arg, size_t element) {
  if (arg >= call.num_args() || !call.arg(arg).isBoolList()) {
    return false;
  }
  const c10::List<bool> mask = call.arg(arg).toBoolList();
  return element < mask.size() && mask.get(element);
}

int64_t div_up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

bool copy_if_strided(const Call& call, size_t arg, Requests& requests) {
  const c10::TensorImpl* tensor = tensor_at(call, arg);
  if (tensor == nullptr || tensor->is_contiguous()) {
    return false;
  }
  requests.take(bytes_of(*tensor));
  return true;
}

void radix_sort(int64_t count, size_t key, size_t value, size_t bits, Requests& requests) {
  constexpr int64_t kMostInOneBlock = 2048;
  constexpr size_t kAlignment = 256;
  constexpr size_t kDigits = 256;
  const auto aligned = [](size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; };
  if (count <= kMostInOneBlock) {
    requests.give_back(requests.take(1));
    return;
  }
  // Keys per block, as CUB is tuned for this card.
  const int64_t tile = key == 1 ? 3456 : key == 2 ? 5632 : key == 4 ? 5376 : bits <= 8 ? 5760 : 4608;
  const size_t passes = (bits + 7) / 8;
  size_t bytes = kAlignment - 1 + passes * kDigits * sizeof(int64_t) + aligned(passes * sizeof(int32_t)) +
      static_cast<size_t>(div_up(count, tile)) * kDigits * sizeof(int32_t);
  if (passes > 1) {
    bytes += aligned(static_cast<size_t>(count) * key) + aligned(static_cast<size_t>(count) * value);
  }
  requests.give_back(requests.take(bytes));
}

namespace {

struct Registration {
  Registration() {
    for (const auto rows :
         {attention_rows(),
          convolution_rows(),
          indexing_rows(),
          normalization_rows(),
          product_rows(),
          recurrent_rows(),
          reduction_rows()}) {
      for (const Row& row : rows) {
        memory::register_operator_memory(row.name, row.memory);
      }
    }
  }
};
const Registration registration;

}  // namespace

}  // namespace torchfake::side_memory
