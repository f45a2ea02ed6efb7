// Calls with symbols that replace the storage of a tensor.
#include <torchfake/dispatch/replaced_storage.h>

#include <c10/util/DimVector.h>

#include <torchfake/core/fake_tensor_impl.h>
#include <torchfake/core/symbolic_bytes.h>

namespace torchfake {

namespace {

struct Replacement {
  c10::Storage storage;
  c10::SymDimVector sizes;
  c10::SymDimVector strides;
  c10::SymInt offset = 0;
};

c10::SymDimVector numbers(const c10::IValue& list) {
  c10::SymDimVector result;
  for (const c10::IValue& element : list.toListRef()) {
    result.push_back(element.toSymInt());
  }
  return result;
}

c10::SymDimVector dense_strides(c10::SymIntArrayRef sizes) {
  c10::SymDimVector strides(sizes.size(), c10::SymInt(1));
  for (size_t i = sizes.size(); i-- > 1;) {
    strides[i - 1] = strides[i] * sizes[i].max(1);
  }
  return strides;
}

std::optional<Replacement> replacement_of(const Call& call, const FakeTensorImpl& self) {
  const auto itemsize = static_cast<int64_t>(self.itemsize());
  Replacement made;
  if (call.num_args() == 1) {
    made.storage = new_fake_storage(0, self.claimed_device(), self.mode()->options.storage_observer);
    made.sizes = {0};
    made.strides = {1};
    return made;
  }
  const c10::IValue& source = call.arg(1);
  if (source.isTensor()) {
    const FakeTensorImpl* other = as_fake(source.toTensor());
    if (other == nullptr || other->dtype() != self.dtype()) {
      return std::nullopt;
    }
    made.storage = other->storage();
    made.sizes.assign(other->sym_sizes().begin(), other->sym_sizes().end());
    made.strides.assign(other->sym_strides().begin(), other->sym_strides().end());
    made.offset = other->sym_storage_offset();
  } else {
    made.storage = source.toStorage();
    made.sizes = {made.storage.sym_nbytes() / itemsize};
    made.strides = {1};
  }
  if (call.num_args() == 5) {
    made.offset = call.arg(2).toSymInt();
    made.sizes = numbers(call.arg(3));
    made.strides = call.arg(4).toListRef().empty() ? dense_strides(made.sizes) : numbers(call.arg(4));
  }
  return made;
}

// The real operator grows a storage that is too small.
bool fits(const Replacement& made, int64_t itemsize) {
  if (made.sizes.size() != made.strides.size()) {
    return false;
  }
  c10::SymInt end = made.offset;
  for (size_t i = 0; i < made.sizes.size(); ++i) {
    if (made.sizes[i].maybe_as_int() == std::optional<int64_t>(0)) {
      return true;
    }
    end = end + (made.sizes[i] - 1) * made.strides[i];
  }
  return ((end + 1) * itemsize).sym_le(made.storage.sym_nbytes()).expect_true(__FILE__, __LINE__);
}

}  // namespace

bool replace_storage(Call& call) {
  const at::Tensor self = call.arg(0).toTensor();
  FakeTensorImpl* fake = as_fake(self);
  if (fake == nullptr || (call.num_args() != 1 && call.num_args() != 2 && call.num_args() != 5)) {
    return false;
  }
  const std::optional<Replacement> made = replacement_of(call, *fake);
  if (!made || claimed_device_of(made->storage.unsafeGetStorageImpl()) != std::optional(fake->claimed_device()) ||
      !fits(*made, static_cast<int64_t>(fake->itemsize()))) {
    return false;
  }
  auto with_storage = c10::make_intrusive<FakeTensorImpl>(
      c10::Storage(made->storage), fake->key_set(), fake->dtype(), fake->claimed_device(), fake->mode());
  with_storage->set_sizes_and_strides(made->sizes, made->strides, made->offset);
  fake->shallow_copy_from(with_storage);
  torch::jit::drop(*call.stack, call.num_args());
  call.stack->emplace_back(self);
  return true;
}

}  // namespace torchfake
