// What the engine knows about an operator beyond its schema: a row of the table in rules/operator_table.cpp.
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

// Runs before the kernel and outside of it: its tensors are fakes that report their claimed device. For an operator
// whose result is a value, the rule runs if that value is unknown.
using Rule = RuleResult (*)(Call& call, const ModePtr& mode);

// Throws if the real operator rejects the call on `device`.
using CallCheck = void (*)(const Call& call, c10::Device device);

// Throws if the real operator rejects known values of its arguments. Fakes of more than `limit` elements count as
// unknown.
using ValueCheck = void (*)(const Call& call, int64_t limit);

// Throws if the kernels of a device do not support the argument dtypes. One object per operator, never destroyed.
class DtypeCheck {
 public:
  virtual ~DtypeCheck() = default;
  virtual void check(const Call& call, c10::Device device) const = 0;
};

// Computes on the CPU what another device computes by a kernel of its own. If one of the returned outputs is undefined,
// the values are unknown.
struct CpuEquivalent {
  c10::KernelFunction kernel;
  std::vector<size_t> unread;  // arguments whose values it does not read
};

// Which device the outputs claim, and which devices the inputs may be on.
enum class DevicePolicy : uint8_t {
  kCommon,  // one device for all inputs; a CPU tensor of no dimensions may be mixed with any device
  kCommonNoScalars,  // the same without that exception
  kIndicesFromCpu,  // the tensors of a list may be on the CPU too
  kIndicesFromAnywhere,  // the tensors of a list may be on any device
  kFirst,  // any device for any input; the outputs claim that of the first
};

// How an operator's values depend on those of its inputs. See Note [Known values].
enum class ValueSource : uint8_t {
  kInputs,  // derived from the inputs
  kConstant,  // derived only from arguments that are not tensors: zeros_like, new_full, arange
  kOverwrite,  // the first argument is overwritten with values derived from the rest: fill_, zero_, copy_
  kUninitialised,  // uninitialised memory: known once it has been written
  kDrawn,  // random: known for few elements. See Note [Draws]
  kNone,  // never known
};

// Whether the operator turns a real tensor into a fake with known values (torch.tensor does, through lift_fresh).
enum class Lift : uint8_t { kNo, kOwned, kCopied };

struct OperatorFacts {
  // ---- Which implementation is used
  Rule rule = nullptr;
  const c10::KernelFunction* kernel = nullptr;  // a C++ meta kernel: ours or PyTorch's
  DevicePolicy devices = DevicePolicy::kCommon;
  Lift lift = Lift::kNo;
  bool reads_no_settings = false;  // its composite kernel only calls other operators. See Note [Kernel environment]
  bool takes_meta = false;  // accepts a meta tensor mixed with another device, which the real meta kernel handles

  // ---- What is refused
  const DtypeCheck* refused_dtypes = nullptr;
  CallCheck autocast_check = nullptr;  // checked only under autocast
  ValueCheck value_check = nullptr;
  bool lacks_cuda = false;  // has no kernel on CUDA, which a PyTorch without CUDA cannot tell
  bool makes_other_layout = false;  // returns a sparse, nested or quantized tensor

  // ---- Values
  std::optional<ValueSource> value_source;  // if it does not follow from the schema
  const CpuEquivalent* cpu_equivalent = nullptr;
  std::optional<ValueMemos::Kind> memo;  // what to memorise of its result
  bool returns_item = false;  // returns the value of its argument's only element
  bool needs_values = false;  // its rule reads the values of some argument
  bool takes_masks = false;  // known masks among the arguments determine the shape of the result
  bool shape_is_data = false;  // no kernel can compute the shape of the result
  bool differs_from_cpu = false;  // other devices compute a different result than the CPU
  bool reads_files = false;  // its values may change between two calls with equal arguments
  bool is_product = false;  // a product of matrices, a convolution, attention: see values/single_precision.h
  bool is_byte_product = false;  // on 8-bit numbers: its values are not tracked
  bool finds_nothing = false;  // searches for invalid values, and is assumed to find none
  const RangeRow* range = nullptr;  // the bounds of its results: see Note [Value ranges]
  bool is_broadcast = false;  // a collective that leaves the values of the root's argument unchanged

  // ---- Arguments and outputs, if the schema does not say so
  bool takes_shape_only = false;  // uses a tensor argument only for its shape: zeros_like, new_empty
  bool takes_factors = false;  // the types of its numbers determine the metadata, their values do not
  bool is_index = false;  // takes a list of indices, which may include masks
  bool keeps_statistics = false;  // writes running_mean and running_var in training
  bool reads_out = false;  // adds to its out= argument
  bool has_fixed_shape = false;  // despite its tag
  bool returns_view = false;
  bool resizes = false;  // may change the geometry of an argument
  bool keeps_place = false;  // the result occupies the same part of its storage as the first argument
  bool replaces_storage = false;  // set_
  bool seeds_on_cpu = false;  // the outputs after the second are on the CPU: the state of random numbers
  bool makes_zero_tensor = false;  // returns a tensor of zeros without memory
  bool converts = false;  // copies to another dtype or device; a real tensor copied to a claimed device becomes fake
  bool detaches = false;
};

// The row of an operator, by its definition. Defined in rules/operator_table.cpp.
OperatorFacts find_operator_facts(const c10::OperatorHandle& op);

}  // namespace torchfake
