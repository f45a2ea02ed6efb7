// Everything that differs between the PyTorch releases torchfake can be built against, and nothing else.
// The rest of the code is written for all supported releases. Operators that exist only in some of them are listed in
// cmake/records/operators_of_releases.json and are available to C++ as compat::ops.
#pragma once

#include <ATen/core/IListRef.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/Padding.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorOptions.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/version.h>

#include <algorithm>
#include <initializer_list>
#include <string_view>

#define TORCHFAKE_TORCH_AT_LEAST(minor) \
  (TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= (minor)))

// Whether PyTorch has a header that says how the matrices of a scaled product may be scaled.
#if __has_include(<ATen/native/ScaledBlasUtils.h>)
#define TORCHFAKE_HAS_SCALING_RECIPES 1
#else
#define TORCHFAKE_HAS_SCALING_RECIPES 0
#endif

namespace torchfake::compat {

// Whether group normalisation accepts an input of any strides, and on a GPU preserves its channels-last format.
inline constexpr bool kGroupNormTakesAnyStrides = TORCHFAKE_TORCH_AT_LEAST(15);

// The slot in PyTorch's thread-local debug info that holds the mode. PyTorch propagates that info to autograd's worker
// threads.
#if TORCHFAKE_TORCH_AT_LEAST(13)
inline constexpr std::string_view kModeInfoName = "torchfake.mode";
inline c10::DebugInfoKind mode_info_kind() {
  return c10::DebugInfoKind(&kModeInfoName);
}
#else
inline c10::DebugInfoKind mode_info_kind() {
  return static_cast<c10::DebugInfoKind>(0x7F);
}
#endif

// Registers `hook` to be called when `storage` is asked for a mutable data pointer. The hook is expected to throw.
inline void set_write_hook(c10::StorageImpl* storage, void (*hook)(c10::StorageImpl*)) {
#if TORCHFAKE_TORCH_AT_LEAST(13)
  if (!storage->has_materializer()) {
    storage->set_materializer(hook);
  }
#else
  (void)hook;  // Not supported by this release: the user gets PyTorch's own message.
  storage->set_throw_on_mutable_data_ptr();
#endif
}

inline void clear_write_hook(c10::StorageImpl* storage) {
#if TORCHFAKE_TORCH_AT_LEAST(13)
  storage->clear_materializer();
#else
  (void)storage;
#endif
}

// Gives `storage` a symbolic size; its data pointer is lost. set_nbytes() of such a size does not set the flag that
// nbytes() checks; only construction and swapping, which older releases lack, do.
inline void set_symbolic_size(c10::StorageImpl* storage, const c10::SymInt& nbytes) {
#if TORCHFAKE_TORCH_AT_LEAST(13)
  c10::StorageImpl sized(
      c10::StorageImpl::use_byte_size_t(),
      nbytes,
      c10::DataPtr(nullptr, c10::Device(c10::kMeta)),
      storage->allocator(),
      /*resizable=*/true);
  storage->swap_data_ptr(sized);
#else
  storage->set_nbytes(nbytes);
#endif
}

// The argument type of `_scaled_mm_v2`'s lists of scales, which became a structured operator in 2.14.
#if TORCHFAKE_TORCH_AT_LEAST(14)
using ScaleList = const at::ITensorListRef&;
inline std::vector<at::Tensor> tensors(const at::ITensorListRef& list) {
  return {list.begin(), list.end()};
}
#else
using ScaleList = at::TensorList;
inline at::TensorList tensors(at::TensorList list) {
  return list;
}
#endif

// Note [Views ask for a device]
// Since 2.15, PyTorch's view functions pass on the device claimed by a tensor with the Fake key. They read it from
// where PyTorch's own fakes store it and assert that it is set. torchfake stores it elsewhere, and inside a kernel its
// fakes, and plain tensors that carry their keys, are on meta (Note [Inside a kernel]). So the base is given a device
// while a view is being made, and afterwards it is removed from both base and view, which are on meta again.
#if TORCHFAKE_TORCH_AT_LEAST(15)
inline constexpr bool kViewsAskForDevice = true;

// Does nothing for a tensor without the Fake key. Returns the backend type whose keys the tensor has.
inline c10::DeviceType lend_device(c10::TensorImpl* impl) {
  const c10::BackendComponent backend = impl->key_set().highestBackendKey();
  const c10::DeviceType type = backend == c10::BackendComponent::InvalidBit
      ? c10::kCPU
      : c10::dispatchKeyToDeviceType(c10::toRuntimePerBackendFunctionalityKey(c10::DispatchKey::Dense, backend));
  if (impl->is_fake()) {
    if (impl->maybe_get_extra_meta() == nullptr) {
      impl->set_fake_tensor_mode(nullptr);  // creates the extra metadata, and changes nothing else
    }
    // A view gets the keys of the given backend, which may be any but meta.
    const bool is_indexed = type != c10::kCPU && type != c10::kMeta;
    impl->maybe_get_extra_meta()->fake_device_ = is_indexed ? c10::Device(type, 0) : c10::Device(c10::kCPU);
  }
  return type;
}

inline void give_back_device(c10::TensorImpl* impl, c10::DeviceType type) {
  if (impl->fake_device()) {
    impl->maybe_get_extra_meta()->fake_device_.reset();
    impl->_change_backend_component_keys(c10::Device(type));
  }
}
#else
inline constexpr bool kViewsAskForDevice = false;
inline c10::DeviceType lend_device(c10::TensorImpl* /*impl*/) {
  return c10::kMeta;
}
inline void give_back_device(c10::TensorImpl* /*impl*/, c10::DeviceType /*type*/) {}
#endif

// Whether quantile() of a CPU tensor finds a single quantile by selection instead of sorting.
inline constexpr bool kSelectsSingleQuantile = TORCHFAKE_TORCH_AT_LEAST(15);

// Whether aminmax() checks for complex dtypes before anything else. Earlier releases leave that to the kernels.
inline constexpr bool kAminmaxChecksDtypeFirst = TORCHFAKE_TORCH_AT_LEAST(15);

// Whether hardtanh() of unsigned integers accepts negative limits.
inline constexpr bool kHardtanhTakesNegativeLimits = TORCHFAKE_TORCH_AT_LEAST(15);

// Throws the error that `op` raises for an unsupported dtype, if it has a specific type in this release. Fewer of these
// are plain errors with each release.
template <typename... Parts>
void check_dtype(std::string_view op, bool is_accepted, const Parts&... message) {
  if (C10_LIKELY(is_accepted)) {
    return;
  }
  const auto is_one_of = [&](std::initializer_list<std::string_view> ops) {
    return std::find(ops.begin(), ops.end(), op) != ops.end();
  };
  const bool is_unimplemented = (TORCHFAKE_TORCH_AT_LEAST(14) && is_one_of({"hardtanh", "relu"})) ||
      (TORCHFAKE_TORCH_AT_LEAST(15) && is_one_of({"complex", "embedding_renorm", "nansum", "var"}));
  TORCH_CHECK_NOT_IMPLEMENTED(!is_unimplemented, message...);
  TORCH_CHECK_TYPE(!(TORCHFAKE_TORCH_AT_LEAST(14) && is_one_of({"_fft_r2c"})), message...);
  TORCH_CHECK(false, message...);
}

// Throws the error that reflection_pad2d raises for these arguments. `padding` starts with the last dimension.
inline void check_reflection_pad2d(const at::Tensor& self, c10::IntArrayRef padding) {
#if TORCHFAKE_TORCH_AT_LEAST(15)
  at::native::padding::pad_shape_check(self, padding, 2, /*is_reflection=*/true);
#else
  at::native::padding::check_valid_input<2>(self, padding);
  const auto padded = [&](int64_t i) { return self.size(-1 - i) + padding[2 * i] + padding[2 * i + 1]; };
  for (int64_t i = 0; i < 2; ++i) {
    TORCH_CHECK(
        padding[2 * i] < self.size(-1 - i) && padding[2 * i + 1] < self.size(-1 - i),
        "Argument #",
        4 + 2 * i,
        ": Padding size should be less than the corresponding input dimension, but got: padding (",
        padding[2 * i],
        ", ",
        padding[2 * i + 1],
        ") at dimension ",
        self.dim() - 1 - i,
        " of input ",
        self.sizes());
  }
  TORCH_CHECK(
      padded(0) >= 1 || padded(1) >= 1,
      "input (H: ",
      self.size(-2),
      ", W: ",
      self.size(-1),
      ") is too small. Calculated output H: ",
      padded(1),
      " W: ",
      padded(0));
#endif
}

// Throws the error that the backward of padding raises for mismatched arguments. `padding` has two numbers per padded
// dimension, and at least as many as the operator requires.
inline void check_pad_backward(
    const at::Tensor& grad_output,
    const at::Tensor& self,
    c10::IntArrayRef padding,
    bool replicates) {
  const auto dims = static_cast<int64_t>(padding.size() / 2);
#if TORCHFAKE_TORCH_AT_LEAST(15)
  if (replicates) {
    at::native::padding::check_valid_input(self, padding, dims);
  }
  at::native::padding::pad_backward_shape_check(grad_output, self, padding, dims);
#else
  (void)grad_output, (void)replicates;
  TORCH_CHECK_INDEX(
      self.dim() > dims,
      "Dimension out of range (expected an input of ",
      dims + 1,
      " dimensions or more, but got ",
      self.sizes(),
      ')');
#endif
}

}  // namespace torchfake::compat
