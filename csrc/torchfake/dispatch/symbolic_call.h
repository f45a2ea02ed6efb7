// A call with symbolic sizes: numbers answer for dtype, device and layout, a rule of the operator for the sizes.
#pragma once

#include <c10/util/DimVector.h>

#include <torchfake/core/call.h>
#include <torchfake/symbolic/sym_node.h>

namespace torchfake {

// Note [Symbolic calls]
// A call among whose arguments a size is symbolic is worked out in two parts. First the engine answers the same call with
// every symbol at its hint, on stand-ins: plain fakes with storages of their own. That gives the number of outputs, their
// dtypes, devices and keys, the order of their strides, and every error the call has at these sizes. Then a rule works out
// the sizes of each output as expressions of placeholders, asking for decisions (which become guards) where the real
// operator compares sizes. What the rule says is evaluated at the hints and compared with what the stand-ins gave: a rule
// that does not fit the call has no say. The rule is, in this order:
//
//   the operator's own, in C++ (rules/symbolic_rules.cpp)
//   the operator's kernel on the Meta key, Python's as a rule, run on fakes whose sizes are the placeholders
//   specialisation: guards that every symbolic number among the arguments has the value that it has now
//
// A symbol that only data knows has no hint, and stands at an example (number_for). A call with one, or with nodes of
// PyTorch's, is answered on its own symbols and not kept: see dispatch/example_call.h.
//
// So an operator without a rule costs generality, and never correctness. What comes out is kept in the cache: see Note
// [Symbolic outcomes] and Note [Placeholders].
class SymbolicCall {
 public:
  using Sizes = c10::SymDimVector;

  // `call` has placeholders for sizes, or symbols that the cache does not keep. `outputs` are what the stand-ins gave: every
  // tensor of it, undefined ones too. Without them, a rule learns what it can, and only views get a geometry.
  explicit SymbolicCall(Call& call, std::vector<at::Tensor> outputs = {})
      : call(call), outputs(std::move(outputs)), geometries(this->outputs.size()) {}

  Call& call;
  const std::vector<at::Tensor> outputs;

  // The index of the argument with this name, or -1.
  int arg_named(std::string_view name) const;
  const c10::IValue& arg(size_t index) const {
    return call.arg(index);
  }
  at::Tensor tensor(size_t index) const {
    return call.arg(index).toTensor();
  }
  // Of an argument that is an integer, or a list of them, symbolic or not.
  c10::SymInt integer(size_t index) const;
  Sizes integers(size_t index) const;

  // The sizes of an output. Its strides are those of a dense tensor whose dimensions lie in memory in the order in which
  // those of the stand-in's output do.
  void set_output(size_t index, c10::SymIntArrayRef sizes);
  // The sizes of all outputs.
  void set_outputs(c10::SymIntArrayRef sizes);

  // Records that the strides of the tensor arguments are in the order in which they are now, as far as that is not a
  // matter of course: the layout of outputs follows from it.
  void guard_stride_order() const;

  // An output that lies in the storage of an argument, or whose strides are not those of a dense tensor.
  void set_geometry(size_t index, c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides, const c10::SymInt& offset);

  struct Geometry {
    Sizes sizes;
    Sizes strides;
    c10::SymInt offset;
  };
  std::vector<std::optional<Geometry>> geometries;

  // Whether the output has a geometry that is right at the hints, or at the examples.
  bool fits(size_t index) const;
  // Whether every output that is a tensor has.
  bool is_complete() const;
};

// Sets the sizes of the outputs; returns whether it can.
using SymbolicRule = bool (*)(SymbolicCall& call);

struct SymbolicRules {
  SymbolicRule rule = nullptr;
  // What the rule says of symbols without hints, or of PyTorch's.
  enum class Use : uint8_t {
    kHintsOnly,  // nothing
    kFresh,  // the sizes of outputs with storages of their own
    kView,  // views of the first argument that differ from it in geometry alone, without stand-ins
  };
  Use use = Use::kHintsOnly;
};

// Set once, by rules/.
using SymbolicRuleFinder = SymbolicRules (*)(const OpTraits& traits);
void set_symbolic_rules(SymbolicRuleFinder finder);
SymbolicRules symbolic_rules_of(const OpTraits& traits);

// The rule of every operator with a kernel on the Meta key: runs it on the fakes with placeholders.
bool rule_of_meta_kernel(SymbolicCall& call, const ModePtr& mode);

// Whether a size or a number among the arguments is symbolic.
bool has_symbols(const Call& call);

// Answers a call that has. `answer` is the way of calls with numbers.
void symbolic_call(Call& call, const ModePtr& mode, void (*answer)(Call& call, const ModePtr& mode));

}  // namespace torchfake
