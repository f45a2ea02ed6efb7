// What differs between the PyTorch releases torchfake can be built against, and nothing else.
// Everything outside this file is written for all of them.
#pragma once

#include <c10/core/StorageImpl.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/version.h>

#define TORCHFAKE_TORCH_AT_LEAST(minor) \
  (TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= (minor)))

// Whether PyTorch has a header that says how the matrices of a scaled product may be scaled.
#if __has_include(<ATen/native/ScaledBlasUtils.h>)
#define TORCHFAKE_HAS_SCALING_RECIPES 1
#else
#define TORCHFAKE_HAS_SCALING_RECIPES 0
#endif

namespace torchfake::compat {

// The slot in PyTorch's thread-local debug info that carries the mode. PyTorch hands that info to autograd's worker
// threads, which is why it is used.
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

// Calls `hook` when someone asks `storage` for a pointer to write through. The hook is expected to throw.
inline void set_write_hook(c10::StorageImpl* storage, void (*hook)(c10::StorageImpl*)) {
#if TORCHFAKE_TORCH_AT_LEAST(13)
  if (!storage->has_materializer()) {
    storage->set_materializer(hook);
  }
#else
  (void)hook;  // No hook there: PyTorch's own message will have to do.
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

}  // namespace torchfake::compat
