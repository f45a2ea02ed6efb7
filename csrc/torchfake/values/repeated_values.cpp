// Constant propagation: large fakes that repeat few values.
#include <torchfake/values/repeated_values.h>

#include <ATen/core/stack.h>
#include <torchfake/core/fake_storage.h>
#include <torchfake/core/plain_cpu.h>

#include <algorithm>

namespace torchfake {

namespace {

bool repeats(const at::Tensor& tensor, int64_t dim) {
  return tensor.size(dim) == 1 || tensor.stride(dim) == 0;
}

int64_t values_in(const at::Tensor& tensor) {
  int64_t count = 1;
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    count *= repeats(tensor, dim) ? 1 : tensor.size(dim);
  }
  return count;
}

// The position of a view among the values of a storage with repeated values.
struct Place {
  c10::SmallVector<int64_t, 6> strides;
  int64_t offset = 0;
};

// Maps `fake` onto the dimensions of `repeated`; nullopt if it cuts across them.
std::optional<Place> find_place(const FakeTensorImpl& fake, const RepeatedBytes& repeated) {
  Place place;
  const auto is_one_value = [](const RepeatedBytes::Dim& dim) { return dim.value_stride == 0; };
  if (std::all_of(repeated.dims.begin(), repeated.dims.end(), is_one_value)) {
    place.strides.resize(fake.dim(), 0);
    return place;
  }
  c10::SmallVector<int64_t, 6> reached(repeated.dims.size());  // the last index used in each dimension
  int64_t rest = fake.storage_offset();
  for (size_t i = 0; i < repeated.dims.size(); ++i) {
    const RepeatedBytes::Dim& dim = repeated.dims[i];
    reached[i] = rest / dim.stride;
    rest %= dim.stride;
    place.offset += reached[i] * dim.value_stride;
  }
  for (int64_t axis = 0; axis < fake.dim(); ++axis) {
    const int64_t stride = fake.stride(axis);
    place.strides.push_back(0);
    if (fake.size(axis) == 1 || stride == 0) {
      continue;
    }
    const auto* dim = std::find_if(
        repeated.dims.begin(), repeated.dims.end(), [&](const auto& each) { return stride % each.stride == 0; });
    if (dim == repeated.dims.end()) {
      return std::nullopt;
    }
    const int64_t step = stride / dim->stride;
    place.strides.back() = step * dim->value_stride;
    reached[dim - repeated.dims.begin()] += step * (fake.size(axis) - 1);
  }
  for (size_t i = 0; i < repeated.dims.size(); ++i) {
    if (reached[i] >= repeated.dims[i].size) {
      return std::nullopt;
    }
  }
  return place;
}

at::Tensor one_repetition(at::Tensor tensor) {
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    if (tensor.stride(dim) == 0 && tensor.size(dim) > 1) {
      tensor = tensor.narrow(dim, 0, 1);
    }
  }
  return tensor;
}

}  // namespace

std::optional<at::Tensor> repeated_tensor(const FakeTensorImpl& fake, int64_t limit) {
  const bool constants_alone = limit == 1;  // as in a FakeTensorMode
  if (!fake.has_storage() || fake.has_symbolic_sizes_strides() || fake.numel() == 0 || constants_alone) {
    return std::nullopt;
  }
  c10::StorageImpl* storage = fake.unsafe_storage().unsafeGetStorageImpl();
  const RepeatedBytes* repeated = repeated_bytes(storage);
  c10::StorageImpl* bytes = repeated != nullptr ? repeated->values.get() : known_bytes(storage);
  if (bytes == nullptr || (repeated != nullptr && repeated->itemsize != fake.itemsize())) {
    return std::nullopt;
  }
  at::Tensor real = cpu_tensor_over(c10::intrusive_ptr<c10::StorageImpl>::unsafe_reclaim_from_nonowning(bytes), fake);
  if (repeated != nullptr) {
    std::optional<Place> place = find_place(fake, *repeated);
    if (!place) {
      return std::nullopt;
    }
    real.unsafeGetTensorImpl()->set_sizes_and_strides(fake.sizes(), place->strides, place->offset);
  }
  return values_in(real) <= limit ? std::optional(real) : std::nullopt;
}

void make_repeated(const FakeTensorImpl& fake, const at::Tensor& small) {
  PlainCpu plain;
  const at::Tensor values = small.contiguous();
  auto repeated = std::make_unique<RepeatedBytes>();
  repeated->values = (values.is_same(small) ? values.clone() : values).storage().getWeakStorageImpl().lock();
  repeated->itemsize = fake.itemsize();
  for (int64_t dim = 0; dim < fake.dim(); ++dim) {
    if (fake.size(dim) > 1) {
      const int64_t value_stride = values.size(dim) == 1 ? 0 : values.stride(dim);
      repeated->dims.push_back({fake.size(dim), fake.stride(dim), value_stride});
    }
  }
  std::sort(
      repeated->dims.begin(), repeated->dims.end(), [](const auto& a, const auto& b) { return a.stride > b.stride; });
  set_repeated_bytes(fake.unsafe_storage().unsafeGetStorageImpl(), fake.claimed_device(), std::move(repeated));
}

bool take_one_repetition(torch::jit::Stack& arguments, int64_t limit) {
  int64_t dims = 0;
  for (const c10::IValue& value : arguments) {
    dims = value.isTensor() ? std::max(dims, value.toTensor().dim()) : dims;
  }
  int64_t left = 1;
  PlainCpu plain;
  for (int64_t from_last = 1; from_last <= dims; ++from_last) {
    int64_t size = 1;
    for (const c10::IValue& value : arguments) {
      if (value.isTensor() && value.toTensor().dim() >= from_last && !repeats(value.toTensor(), -from_last)) {
        size = value.toTensor().size(-from_last);
      }
    }
    left *= size;
    for (c10::IValue& value : arguments) {
      if (size == 1 && value.isTensor() && value.toTensor().dim() >= from_last) {
        value = value.toTensor().narrow(-from_last, 0, 1);
      }
    }
  }
  return left <= limit;
}

int64_t nonzero_count(const at::Tensor& repeated) {
  PlainCpu plain;
  const at::Tensor one = one_repetition(repeated);
  return one.numel() == 0 ? 0 : one.count_nonzero().item<int64_t>() * (repeated.numel() / one.numel());
}

}  // namespace torchfake
