// Loads libraries compiled for CUDA, substituting the CUDA libraries that are missing.
#include "absent_libraries.h"

#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <array>

#include "absent_devices.h"

namespace torchfake {

namespace {

// The folder that libtorchfake.so was loaded from.
std::string own_folder() {
  Dl_info info{};
  const int found = dladdr(reinterpret_cast<void*>(&load_library_compiled_for_cuda), &info);
  TORCH_INTERNAL_ASSERT(found != 0 && info.dli_fname != nullptr);
  const std::string file = info.dli_fname;
  return file.substr(0, file.rfind('/') + 1);
}

// Makes `name` available to the loader: the installed library or, failing that, ours.
void provide(const char* name) {
  if (dlopen(name, RTLD_LAZY | RTLD_GLOBAL) != nullptr) {
    return;
  }
  const std::string ours = own_folder() + name;
  TORCH_CHECK(dlopen(ours.c_str(), RTLD_LAZY | RTLD_GLOBAL) != nullptr, "load_library: ", dlerror());
}

}  // namespace

void load_library_compiled_for_cuda(const std::string& path) {
  TORCH_CHECK(is_absent(c10::kCUDA), "load_library: ", path, " can be loaded as it is, since this PyTorch has CUDA");
  static const std::array<const char*, 4> kMissing = {
      "libc10_cuda.so", "libtorch_cuda.so", "libcudart.so.12", "libcudart.so.13"};
  for (const char* name : kMissing) {
    provide(name);
  }
  TORCH_CHECK(dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL) != nullptr, "load_library: ", dlerror());
}

}  // namespace torchfake
