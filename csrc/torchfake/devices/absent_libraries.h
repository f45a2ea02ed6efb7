// Loads operator libraries compiled for CUDA into a PyTorch without it.
#pragma once

#include <string>

namespace torchfake {

// Note [Libraries compiled for CUDA]
// A library such as torchvision's registers its operators (names, kernels for the CPU and for CUDA) when it is loaded.
// Builds for GPUs are linked with libc10_cuda.so, libtorch_cuda.so and CUDA's runtime, which a CPU build of PyTorch
// lacks, so the library does not load and importing the package fails. Fakes only need the names and the CPU kernels of
// such a library:
//
//     with fake_mode(gpus="H200"):
//         import torchvision                       # loads _C.so, whose CUDA kernels are never called
//         torchvision.ops.nms(boxes, scores, 0.5)  # on claimed GPUs
//
// Libraries of the same names, next to libtorchfake.so, substitute for the missing ones (csrc/absent_cuda). They define
// the data symbols bound at load time and the functions that register kernels. Other functions are bound on their first
// call, which never happens because no kernel runs on a claimed GPU. Invariant: used only if CUDA is absent
// (is_absent), after loading the library normally has failed, and only in a mode that claims GPUs. Rejected: defining
// the operators' names from a list, which would lack kernels and match only one release.

// Loads the library at `path`. Throws c10::Error with the loader's message if that fails nevertheless, or if CUDA is
// not absent. A loaded library stays loaded.
void load_library_compiled_for_cuda(const std::string& path);

}  // namespace torchfake
