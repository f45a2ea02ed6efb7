// The temporary memory of operators on a GPU: their kernels' buffers, and library workspaces. Step: outcome.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/SmallVector.h>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace torchfake {
class Call;
}

namespace torchfake::memory {

// A kernel's requests to the allocator, in order. Outputs that no step names come last, or first if no step names any.
// Memory that is not given back is held until the kernel returns.
class Requests {
 public:
  struct Step {
    enum class Kind : unsigned char { kTake, kGiveBack, kOutput };
    Kind kind = Kind::kTake;
    uint32_t number = 0;  // kGiveBack: the step that took it. kOutput: the output, counting tensors in lists
    size_t nbytes = 0;
  };

  // Returns the number to pass to give_back(). A request of no bytes takes nothing.
  uint32_t take(size_t nbytes) {
    steps_.push_back({Step::Kind::kTake, 0, nbytes});
    return static_cast<uint32_t>(steps_.size() - 1);
  }
  void give_back(uint32_t taken) {
    steps_.push_back({Step::Kind::kGiveBack, taken, 0});
  }
  void output(uint32_t number) {
    steps_.push_back({Step::Kind::kOutput, number, 0});
  }
  // The outputs from 0 on, in order.
  void outputs(uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) {
      output(i);
    }
  }
  c10::ArrayRef<Step> steps() const {
    return steps_;
  }

 private:
  c10::SmallVector<Step, 8> steps_;
};

// Adds the requests of a call's kernel on a GPU. `call` holds its arguments as passed.
using RequestsOf = void (*)(const Call& call, Requests& requests);

// The library workspace that an operator needs: allocated by the first such operator on a thread and stream, and kept.
enum class Workspace : unsigned char {
  kNone,
  kBlas,  // cuBLAS
  kBlasLt,  // cuBLASLt, which also obtains a handle of cuBLAS
  kDropoutState,  // the random state of recurrent networks, one for each card
};

struct OperatorMemory {
  RequestsOf requests = nullptr;
  Workspace workspace = Workspace::kNone;
};

// By the operator's name with its overload: "aten::mm", "aten::sum.dim_IntList". Must be called at load time. The name
// must live as long as the process.
void register_operator_memory(std::string_view name, OperatorMemory memory);

// The temporary memory of an operator; empty if there is none. `name` must live as long as the process.
const OperatorMemory& operator_memory(std::string_view name);

}  // namespace torchfake::memory
