// What operators take on the side on a GPU: temporaries of their kernels, and workspaces of libraries. Step: outcome.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/SmallVector.h>

#include <cstddef>
#include <string_view>

namespace torchfake {
class Call;
}

namespace torchfake::memory {

// Adds to `sizes` the bytes of the temporaries that live at once, beside the outputs, when the kernel of a call on a GPU
// takes most. `call` has its arguments as they were called.
using TemporariesOf = void (*)(const Call& call, c10::SmallVectorImpl<size_t>& sizes);

// Which library's workspace an operator needs: taken when the first of them runs on a thread and stream, and kept.
enum class Workspace : unsigned char {
  kNone,
  kBlas,  // cuBLAS
  kBlasLt,  // cuBLASLt, which fetches a handle of cuBLAS as well
};

struct OperatorMemory {
  TemporariesOf temporaries = nullptr;
  Workspace workspace = Workspace::kNone;
};

// By the operator's name with its overload: "aten::mm", "aten::sum.dim_IntList". To be called at load. The name must live
// as long as the process.
void register_operator_memory(std::string_view name, OperatorMemory memory);

// That of an operator; empty where it takes nothing on the side. `name` must live as long as the process.
const OperatorMemory& operator_memory(std::string_view name);

}  // namespace torchfake::memory
