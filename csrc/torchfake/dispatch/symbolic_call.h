// A call with symbolic sizes: numbers answer for dtype, device and layout, a rule of the operator for the sizes.
#pragma once

#include <c10/util/DimVector.h>

#include <torchfake/core/call.h>
#include <torchfake/symbolic/sym_node.h>

namespace torchfake {

// Note [Symbolic calls]
// A call among whose arguments a size is symbolic is answered in two parts. First the engine answers the same call with
// every symbol at its hint, on stand-ins: plain fakes with storages of their own. That gives the number of outputs, their
// dtypes, devices and keys, the order of their strides, and every error the call has at these sizes. Then the operator's
// symbolic rule works out the sizes of each output as expressions, asking for decisions (which become guards) where the
// real operator compares sizes. What the rule says is evaluated at the hints and compared with what the stand-ins gave: a
// rule that does not fit the call has no say.
//
// A symbol that only data knows has no hint, and stands at an example (number_for). There the rule comes first, because
// what it learns (that u0 is equal to u1) decides which examples are possible. It has the same say: the sizes are the
// rule's, the example gives dtypes and layout.
//
// Without a rule, or where it has no say, the call is specialised: guards are recorded that every symbol in its arguments
// has the value of its hint, and the answer is the one for numbers. So an operator without a rule costs generality, and
// never correctness. Of a symbol without a hint that is an error.
//
// The sizes are c10::SymInt, whoever's nodes they are: torchfake's or PyTorch's.
//
// Views need no stand-ins: their rules make the view of the symbolic fake itself.
class SymbolicCall {
 public:
  using Sizes = c10::SymDimVector;

  explicit SymbolicCall(const Call& call) : call(call) {}

  const Call& call;

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

  // What was set for an output; nothing where nothing was, or where the output has another number of dimensions.
  struct Geometry {
    Sizes sizes;
    Sizes strides;
  };
  std::optional<Geometry> geometry(size_t index, const at::Tensor& output) const;

 private:
  std::vector<std::optional<Sizes>> sizes_;
  std::optional<Sizes> sizes_of_all_;
};

// Sets the sizes of the outputs; returns whether it can.
using SymbolicRule = bool (*)(SymbolicCall& call);
// Replaces the arguments on the stack by views; returns whether it can, having left the stack alone where it cannot.
using SymbolicView = bool (*)(SymbolicCall& call, std::vector<c10::IValue>& outputs);

struct SymbolicRules {
  SymbolicRule rule = nullptr;
  SymbolicView view = nullptr;
};

// Set once, by rules/.
using SymbolicRuleFinder = SymbolicRules (*)(const OpTraits& traits);
void set_symbolic_rules(SymbolicRuleFinder finder);

// Whether a size or a number among the arguments is symbolic.
bool has_symbols(const Call& call);

// Answers a call that has. `answer` is the way of calls with numbers.
void symbolic_call(Call& call, const ModePtr& mode, void (*answer)(Call& call, const ModePtr& mode));

// A view of `base` with this geometry.
at::Tensor symbolic_view(
    const at::Tensor& base,
    c10::SymIntArrayRef sizes,
    c10::SymIntArrayRef strides,
    const c10::SymInt& storage_offset);

}  // namespace torchfake
