// The work that an operator causes on a card: products, memory traffic, kernel launches, communication between cards.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <torchfake/core/op_traits.h>

#include <cstdint>
#include <string_view>

namespace torchfake::work {

// Operators of one family reach about the same fraction of a card's peak at the same size.
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
  // Multiplications and additions of matrix products, convolutions and attention, as counted by PyTorch's
  // FlopCounterMode.
  int64_t flops = 0;
  // Those that no kernel can skip: half of them in causal attention.
  int64_t least_flops = 0;
  // The bytes of memory that must be read or written.
  int64_t nbytes = 0;
  // The elements of the outputs. Together with `flops`: how many kernels can work on at once.
  int64_t outputs = 0;
  // The bytes that a rank sends or receives over its link. For kCollective and kTransfer.
  int64_t traffic = 0;
  int32_t launches = 0;
  int32_t group_size = 0;  // for kCollective
  Family family = Family::kOther;
  c10::ScalarType dtype = c10::ScalarType::Undefined;  // in which products are computed
  bool may_use_tf32 = false;
  // Whether rows of matrices begin at multiples of 8 elements, and channels are such multiples, as tensor cores need.
  bool is_aligned = true;
  c10::Device device{c10::kCPU};

  bool operator==(const Work& other) const = default;
};

// A completed call.
struct FinishedCall {
  const OpTraits& traits;
  const c10::FunctionSchema& schema;
  c10::ArrayRef<c10::IValue> arguments;
  c10::ArrayRef<c10::IValue> outputs;

  // The argument with this name; null if there is none or if it is None.
  const c10::IValue* find(const char* name) const;
  // The same for a tensor; null if it is undefined.
  const c10::TensorImpl* find_tensor(const char* name) const;
  // The first output if it is a defined tensor, otherwise null.
  const c10::TensorImpl* output() const;
};

// Adds to the work that follows from the sizes of arguments and outputs. All sizes are numbers and valid for the
// operator.
using Completes = void (*)(const FinishedCall& call, Work& work);

struct OperatorWork {
  Family family = Family::kOther;
  Completes complete = nullptr;
};

// `name` is the operator's name without its overload: "aten::mm". Must be called at load time.
void register_operator_work(std::string_view name, OperatorWork work);

// The work of a call; empty for views and for operators that only allocate.
Work work_of(const FinishedCall& call);

// Whether a tensor of the call has symbolic sizes, so that its work cannot be counted.
bool has_symbolic_sizes(const FinishedCall& call);

// The number of elements at distinct addresses: an expanded dimension counts once.
int64_t distinct_elements(const c10::TensorImpl& tensor);
int64_t bytes_of(const c10::TensorImpl& tensor);
// a * b, or the largest int64_t if that overflows.
int64_t saturating_product(int64_t a, int64_t b);

}  // namespace torchfake::work
