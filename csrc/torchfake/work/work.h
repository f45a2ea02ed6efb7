// What an operator has a card do: products, memory that moves, kernels, traffic between cards.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <torchfake/core/op_traits.h>

#include <cstdint>
#include <string_view>

namespace torchfake::work {

// Operators of one family reach about the same part of a card's peak at the same size.
enum class Family : uint8_t {
  kElementwise,
  kReduction,
  kNormalization,
  kIndexing,
  kOptimizer,  // lists of tensors: foreach and fused
  kMatmul,
  kConvolution,
  kAttention,
  kRecurrent,
  kTransfer,  // between the host and a card
  kCollective,  // between cards
  kOther,
};
inline constexpr size_t kFamilies = 12;
std::string_view to_string(Family family);

struct Work {
  // Multiplications and additions of products, as PyTorch's FlopCounterMode counts them.
  int64_t flops = 0;
  // Those that a kernel cannot leave out: half of them in causal attention.
  int64_t least_flops = 0;
  // Read and written at least once.
  int64_t nbytes = 0;
  // That a rank gives or gets over its link, of kCollective and kTransfer.
  int64_t traffic = 0;
  int32_t launches = 0;
  int32_t group_size = 0;  // of kCollective
  Family family = Family::kOther;
  c10::ScalarType dtype = c10::ScalarType::Undefined;  // that products are computed in
  bool may_use_tf32 = false;
  c10::Device device{c10::kCPU};

  bool operator==(const Work& other) const = default;
};

// A call that has been answered.
struct FinishedCall {
  const OpTraits& traits;
  const c10::FunctionSchema& schema;
  c10::ArrayRef<c10::IValue> arguments;
  c10::ArrayRef<c10::IValue> outputs;

  // The argument of that name; null where there is none, or None.
  const c10::IValue* find(const char* name) const;
  // The same of a tensor that is defined.
  const c10::TensorImpl* find_tensor(const char* name) const;
  // The first output, where it is a tensor that is defined; else null.
  const c10::TensorImpl* output() const;
};

// Completes what follows from the arguments' and outputs' sizes alone. Sizes are numbers, and fit the operator.
using Completes = void (*)(const FinishedCall& call, Work& work);

struct OperatorWork {
  Family family = Family::kOther;
  Completes complete = nullptr;
};

// By the operator's name without its overload: "aten::mm". To be called at load.
void register_operator_work(std::string_view name, OperatorWork work);

// The work of a call. Nothing for views, and for memory that is only reserved.
Work work_of(const FinishedCall& call);

// Whether sizes of some tensor are symbols, so that its work is not counted.
bool has_symbolic_sizes(const FinishedCall& call);

// Elements that lie at different places: an expanded dimension counts once.
int64_t distinct_elements(const c10::TensorImpl& tensor);
int64_t bytes_of(const c10::TensorImpl& tensor);
// a * b, or the largest number.
int64_t saturating_product(int64_t a, int64_t b);

}  // namespace torchfake::work
