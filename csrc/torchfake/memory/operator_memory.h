// What operators take on the side on a GPU: temporaries of their kernels, and workspaces of libraries. Step: outcome.
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

// What a kernel asks the allocator for, in its order. Outputs that no step names come first of all, if none is named;
// else last. What is not given back is held until the kernel returns.
class Requests {
 public:
  struct Step {
    enum class Kind : unsigned char { kTake, kGiveBack, kOutput };
    Kind kind = Kind::kTake;
    uint32_t number = 0;  // kGiveBack: the step that took. kOutput: the output, counting the tensors of lists
    size_t nbytes = 0;
  };

  // Returns a number to give it back by. Nothing is taken for no bytes.
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
  // Outputs from 0 on, in their order.
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

// Adds what the kernel of a call on a GPU asks for. `call` has its arguments as they were called.
using RequestsOf = void (*)(const Call& call, Requests& requests);

// Which library's workspace an operator needs: taken when the first of them runs on a thread and stream, and kept.
enum class Workspace : unsigned char {
  kNone,
  kBlas,  // cuBLAS
  kBlasLt,  // cuBLASLt, which fetches a handle of cuBLAS as well
};

struct OperatorMemory {
  RequestsOf requests = nullptr;
  Workspace workspace = Workspace::kNone;
};

// By the operator's name with its overload: "aten::mm", "aten::sum.dim_IntList". To be called at load. The name must live
// as long as the process.
void register_operator_memory(std::string_view name, OperatorMemory memory);

// That of an operator; empty where it takes nothing on the side. `name` must live as long as the process.
const OperatorMemory& operator_memory(std::string_view name);

}  // namespace torchfake::memory
