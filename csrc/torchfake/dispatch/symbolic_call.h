// Calls with symbolic sizes: numbers determine dtype, device and layout, and a rule of the operator the sizes.
#pragma once

#include <c10/util/DimVector.h>

#include <torchfake/core/call.h>
#include <torchfake/symbolic/sym_node.h>

namespace torchfake {

// Note [Symbolic calls]
// A call with a symbolic size among its arguments is handled in two steps. First the engine runs the same call with
// every symbol at its hint, on stand-ins: plain fakes with storages of their own. This gives the number of outputs,
// their dtypes, devices and keys, the order of their strides, and every error of the call at these sizes. Then a rule
// computes the sizes of each output as expressions of placeholders, asking for decisions (which become guards) where
// the real operator compares sizes. The rule's results are evaluated at the hints and compared with those of the
// stand-ins: a rule that does not match is not used. The rules are tried in this order:
//
//   the operator's own, in C++ (rules/symbolic_rules.cpp)
//   the operator's kernel on the Meta key, Python's as a rule, run on fakes whose sizes are the placeholders
//   the operator's composite kernel, run in the same way
//   specialisation: guards that every symbolic number among the arguments has the value that it has now
//
// A kernel that reads a size as a number, which fixes it by a guard, is used only if no later rule applies.
//
// An unbacked symbol has no hint and takes an example value (number_for). A call with one, or with nodes of PyTorch's
// own, is handled on its own symbols and not cached: see dispatch/example_call.h.
//
// An operator without a rule therefore loses generality, but never correctness. The outcome is cached: see
// Note [Symbolic outcomes] and Note [Placeholders].
class SymbolicCall {
 public:
  using Sizes = c10::SymDimVector;

  // `call` has placeholders as sizes, or symbols that the cache does not store. `outputs` are all tensors that the call
  // on the stand-ins returned, including undefined ones. Without them, a rule records what it can, and only views get a
  // geometry.
  explicit SymbolicCall(Call& call, std::vector<at::Tensor> outputs = {})
      : call(call), outputs(std::move(outputs)), geometries(this->outputs.size()) {}

  Call& call;
  const std::vector<at::Tensor> outputs;
  // For each output, the argument that it is, if the call leaves the argument's sizes unchanged. Empty if this is
  // unknown.
  std::vector<const c10::TensorImpl*> same_as;

  // The index of the argument with this name, or -1.
  int arg_named(std::string_view name) const;
  const c10::IValue& arg(size_t index) const {
    return call.arg(index);
  }
  at::Tensor tensor(size_t index) const {
    return call.arg(index).toTensor();
  }
  // The value of an argument that is an integer, or a list of integers, symbolic or not.
  c10::SymInt integer(size_t index) const;
  Sizes integers(size_t index) const;

  // Sets the sizes of an output. Its strides are those of the argument that it is, or of a dense tensor with the order of
  // dimensions of the stand-in's output.
  void set_output(size_t index, c10::SymIntArrayRef sizes);
  // Sets the sizes of all outputs.
  void set_outputs(c10::SymIntArrayRef sizes);

  // Guards the current order of the tensor arguments' strides, unless it holds anyway: the layout of outputs depends on
  // it.
  void guard_stride_order() const;

  // Sets the geometry of an output that is a view of an argument, or is not dense.
  void set_geometry(size_t index, c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides, const c10::SymInt& offset);

  struct Geometry {
    Sizes sizes;
    Sizes strides;
    c10::SymInt offset;
  };
  std::vector<std::optional<Geometry>> geometries;
  // The integers that the call returns besides tensors, by a kernel on symbols; empty if they are those at the hints.
  std::vector<c10::SymInt> numbers;

  // Whether the output's geometry is correct at the hints or examples.
  bool fits(size_t index) const;
  // Whether this holds for every output that is a tensor.
  bool is_complete() const;
};

// Sets the sizes of the outputs; returns whether it applies.
using SymbolicRule = bool (*)(SymbolicCall& call);

struct SymbolicRules {
  SymbolicRule rule = nullptr;
  // What the rule determines for symbols without hints, or for PyTorch's own.
  enum class Use : uint8_t {
    kHintsOnly,  // nothing
    kFresh,  // the sizes of outputs with storages of their own
    kView,  // views of the first argument that differ from it only in geometry, without stand-ins
  };
  Use use = Use::kHintsOnly;
  // Whether kernels that take symbols are tried before the rule: they check more.
  bool after_kernels = false;
};

// Set once, by rules/.
using SymbolicRuleFinder = SymbolicRules (*)(const OpTraits& traits);
void set_symbolic_rules(SymbolicRuleFinder finder);
SymbolicRules symbolic_rules_of(const OpTraits& traits);

// The rule for operators with a kernel on the Meta key: runs that kernel on fakes with placeholders.
bool rule_of_meta_kernel(SymbolicCall& call, const ModePtr& mode);
// The rule for operators with a kernel that all backends share, or only with a decomposition: runs it in the same way.
bool rule_of_composite(SymbolicCall& call, const ModePtr& mode);

// The results of these kernels on the arguments of a call, which are fakes of `mode`; nullopt if there is none.
std::optional<torch::jit::Stack> results_of_meta_kernel(const Call& call, const ModePtr& mode);
std::optional<torch::jit::Stack> results_of_composite(const Call& call, const ModePtr& mode);
// Sets the geometries to those of such results; returns whether there are results, one for each output.
bool take_sizes(SymbolicCall& call, const std::optional<torch::jit::Stack>& results);

// The mode for tensors that rules create internally, which occupy no memory.
ModePtr without_observer(const ModePtr& mode);

// Whether a size or a number among the arguments is symbolic.
bool has_symbols(const Call& call);

// Handles a call for which has_symbols() holds. `answer` handles calls with numbers.
void symbolic_call(Call& call, const ModePtr& mode, void (*answer)(Call& call, const ModePtr& mode));

}  // namespace torchfake
