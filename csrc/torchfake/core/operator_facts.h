// What the engine knows of an operator beyond its schema: a row of the table in rules/operator_table.cpp.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>

#include <torchfake/core/fake_mode.h>
#include <torchfake/core/value_memos.h>

#include <optional>
#include <vector>

namespace torchfake {

class Call;
struct RangeRow;

enum class RuleResult : uint8_t {
  kContinue,  // go on to the kernel, with the arguments as the rule left them
  kAnswered,  // the outputs are on the stack, as a kernel would have left them
};

// Runs before the kernel, outside of it: its tensors are fakes that answer their claimed device. The rule of an operator
// whose result is a value runs where that value is not known.
using Rule = RuleResult (*)(Call& call, const ModePtr& mode);

// Throws where the real operator refuses the call on `device`.
using CallCheck = void (*)(const Call& call, c10::Device device);

// Throws where the real operator refuses values of its arguments that are known. Values of fakes of more than `limit`
// elements are not.
using ValueCheck = void (*)(const Call& call, int64_t limit);

// Throws where the kernels of a device refuse the dtypes of the arguments. One object per operator, never destroyed.
class DtypeCheck {
 public:
  virtual ~DtypeCheck() = default;
  virtual void check(const Call& call, c10::Device device) const = 0;
};

// Computes on the CPU what another device has a kernel of its own for. Where one of its outputs is undefined, the values
// are not known.
struct CpuEquivalent {
  c10::KernelFunction kernel;
  std::vector<size_t> unread;  // arguments whose values it does not read
};

// Which device the outputs claim, and which devices the inputs may be on.
enum class DevicePolicy : uint8_t {
  kCommon,  // one device for all inputs; a CPU tensor of no dimensions joins any device
  kCommonNoScalars,  // the same without that exception
  kIndicesFromCpu,  // the tensors of a list may be on the CPU too
  kIndicesFromAnywhere,  // the tensors of a list may be on any device
  kFirst,  // any device for any input; the outputs claim that of the first
};

// How an operator's values relate to those of its inputs. See Note [Known values].
enum class ValueSource : uint8_t {
  kInputs,  // follow from the inputs
  kConstant,  // follow from the other arguments alone: zeros_like, new_full, arange
  kOverwrite,  // the first argument is overwritten with what follows from the rest: fill_, zero_, copy_
  kUninitialised,  // whatever was in memory: known when it has been written
  kDrawn,  // random: known where they are few. See Note [Draws]
  kNone,  // never known
};

// Whether the operator turns a real tensor into a fake with known values (torch.tensor does, through lift_fresh).
enum class Lift : uint8_t { kNo, kOwned, kCopied };

struct OperatorFacts {
  // ---- How the call is answered
  Rule rule = nullptr;
  const c10::KernelFunction* kernel = nullptr;  // in C++, for metadata alone: ours or PyTorch's
  DevicePolicy devices = DevicePolicy::kCommon;
  Lift lift = Lift::kNo;
  bool takes_meta = false;  // a meta tensor beside tensors of another device, which for real the meta kernel answers

  // ---- What is refused
  const DtypeCheck* refused_dtypes = nullptr;
  CallCheck autocast_check = nullptr;  // under autocast alone
  ValueCheck value_check = nullptr;
  bool lacks_cuda = false;  // has no kernel on CUDA; a PyTorch without CUDA cannot tell
  bool makes_other_layout = false;  // returns a sparse, nested or quantized tensor

  // ---- Values
  std::optional<ValueSource> value_source;  // where it does not follow from the schema
  const CpuEquivalent* cpu_equivalent = nullptr;
  std::optional<ValueMemos::Kind> memo;  // what to remember of its answer
  bool returns_item = false;  // the value of the one element of its argument
  bool needs_values = false;  // its rule reads values of some argument
  bool takes_masks = false;  // known masks among the arguments give the shape of the result
  bool shape_is_data = false;  // no kernel can tell the shape of the result
  bool differs_from_cpu = false;  // other devices compute something else than the CPU
  bool reads_files = false;  // its values may change between two calls with equal arguments
  bool is_product = false;  // of matrices, a convolution, attention: see values/single_precision.h
  bool is_byte_product = false;  // of 8-bit numbers: its values are not tracked
  bool finds_nothing = false;  // looks for values that are amiss, and is taken to find none
  const RangeRow* range = nullptr;  // between which bounds its results lie: see Note [Value ranges]
  bool is_broadcast = false;  // a collective that leaves the values of the root's argument as they are

  // ---- Arguments and outputs, where the schema does not say so
  bool takes_shape_only = false;  // of a tensor argument: zeros_like, new_empty
  bool takes_factors = false;  // its numbers scale: of their values, the outcome's metadata depends on the type alone
  bool is_index = false;  // takes a list of indices, among which masks may be
  bool keeps_statistics = false;  // writes running_mean and running_var in training
  bool reads_out = false;  // adds to its out= argument
  bool has_fixed_shape = false;  // in spite of its tag
  bool returns_view = false;
  bool resizes = false;  // may change the geometry of an argument
  bool keeps_place = false;  // the result lies in its storage as the first argument does
  bool replaces_storage = false;  // set_
  bool seeds_on_cpu = false;  // the outputs after the second are on the CPU: the state of random numbers
  bool makes_zero_tensor = false;  // returns a tensor of zeros without memory
  bool converts = false;  // copies to another dtype or device; a real tensor sent to a claimed device becomes fake
  bool detaches = false;
};

// The row of an operator, made from its definition. Defined in rules/operator_table.cpp.
OperatorFacts find_operator_facts(const c10::OperatorHandle& op);

}  // namespace torchfake
