// Libraries of operators that were compiled for CUDA, loaded beside a PyTorch without it.
#pragma once

#include <string>

namespace torchfake {

// Note [Libraries compiled for CUDA]
// A library such as torchvision's registers its operators (their names, kernels for the CPU and for CUDA) when it is
// loaded. The one that people have beside their GPUs is linked with libc10_cuda.so, libtorch_cuda.so and CUDA's runtime,
// which a PyTorch for the CPU lacks, so that it does not load, and importing the package fails. Fakes need the names and
// the CPU's kernels of such a library alone:
//
//     with fake_mode(gpus="H200"):
//         import torchvision                       # loads _C.so, whose CUDA kernels are never called
//         torchvision.ops.nms(boxes, scores, 0.5)  # on claimed GPUs
//
// Libraries of the same names stand for the missing ones (csrc/absent_cuda), next to libtorchfake.so. They define the
// data that is bound at loading and the functions that announce kernels. Other functions are bound when they are called,
// which no kernel of a claimed GPU is. Invariant: only where PyTorch was built without CUDA, and only in a mode that
// claims GPUs. Rejected: defining the operators' names from a list, which would have no kernels and be of one release.

// Loads the library at `path`. Throws c10::Error with the loader's message if it cannot be loaded even so, or if PyTorch
// has CUDA. A library that is loaded stays loaded.
void load_library_compiled_for_cuda(const std::string& path);

}  // namespace torchfake
