// Gives a fake symbolic sizes.
#include <torchfake/convert/symbolic_sizes.h>

#include <c10/util/DimVector.h>

#include <torchfake/core/fake_tensor_impl.h>
#include <torchfake/core/symbolic_bytes.h>

#include <algorithm>

namespace torchfake {

namespace {

// Each stride becomes size times stride of a dimension that is closer in memory, if one matches.
c10::SymDimVector symbolic_strides(c10::SymIntArrayRef sizes, c10::IntArrayRef hints, c10::IntArrayRef strides) {
  c10::SmallVector<int64_t, 5> order;
  for (auto dim = static_cast<int64_t>(strides.size()) - 1; dim >= 0; --dim) {
    order.push_back(dim);
  }
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return strides[a] < strides[b]; });
  c10::SymDimVector result(strides.size());
  for (size_t i = 0; i < order.size(); ++i) {
    const int64_t dim = order[i];
    result[dim] = strides[dim];
    // Prefers the outermost match: among equal ones, the one placed last.
    for (size_t j = i; j > 0 && strides[dim] > 1; --j) {
      const int64_t inner = order[j - 1];
      if (hints[inner] > 1 && strides[dim] == hints[inner] * strides[inner]) {
        result[dim] = sizes[inner] * result[inner];
        break;
      }
    }
  }
  return result;
}

}  // namespace

void make_symbolic(
    const at::Tensor& fake,
    const ShapeEnvPtr& env,
    const std::map<int64_t, std::string>& names,
    const std::string& source) {
  FakeTensorImpl* impl = as_fake(fake);
  TORCH_CHECK_VALUE(impl != nullptr && impl->has_plain_geometry(), "dynamic: expected a fake whose sizes are numbers");
  const auto rank = impl->dim();
  c10::SymDimVector sizes;
  for (const int64_t size : impl->sizes()) {
    sizes.emplace_back(size);
  }
  for (const auto& [dim, name] : names) {
    TORCH_CHECK_INDEX(
        dim >= -rank && dim < rank, "dynamic: the tensor has ", rank, " dimensions, and ", dim, " is none of them");
    const int64_t place = dim < 0 ? dim + rank : dim;
    sizes[place] = to_sym_int(env, env->create_size(impl->size(place), name, c10::str(source, ".size()[", place, "]")));
  }
  if (c10::asIntArrayRefSlowOpt(sizes)) {
    return;
  }
  const c10::SymDimVector strides = symbolic_strides(sizes, impl->sizes(), impl->strides());
  const c10::SymInt offset = impl->storage_offset();
  c10::SymInt end = offset + 1;
  int64_t end_now = impl->storage_offset() + 1;
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    end = end + (sizes[dim] - 1) * strides[dim];
    end_now += (impl->size(static_cast<int64_t>(dim)) - 1) * impl->stride(static_cast<int64_t>(dim));
  }
  const auto itemsize = static_cast<int64_t>(impl->itemsize());
  c10::StorageImpl* storage = impl->storage_impl();
  // A view of a larger storage leaves the size of that storage a number.
  if (storage != nullptr && impl->numel() > 0 && bytes_now(*storage) == static_cast<size_t>(end_now * itemsize)) {
    set_symbolic_bytes(storage, impl->claimed_device(), end * itemsize);
  }
  impl->set_sizes_and_strides(sizes, strides, offset);
}

}  // namespace torchfake
