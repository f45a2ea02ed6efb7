// Data-dependent calls in a mode with a shape environment: their results have new symbols.
#pragma once

#include <torchfake/core/call.h>
#include <torchfake/symbolic/mode_env.h>

namespace torchfake {

// A call whose outcome depends on unknown data.
class NewSymbolsCall {
 public:
  NewSymbolsCall(Call& call, const ModePtr& mode, SymbolSource& symbols) : call(call), mode(mode), symbols_(symbols) {}

  Call& call;
  const ModePtr& mode;

  at::Tensor tensor(size_t index) const {
    return call.arg(index).toTensor();
  }
  // The size found for the call's first tensor before, or a new one. See ValueMemos.
  c10::SymInt remembered_size(int64_t low, std::optional<int64_t> high);
  c10::SymInt new_size(int64_t low, std::optional<int64_t> high) {
    return symbols_.new_size(low, high);
  }
  c10::Scalar remembered_value(ValueType type);

 private:
  SymbolSource& symbols_;
};

// Returns the operator's results, or nullopt without changing the arguments if it does not apply. Called with fakes
// that keep their claimed devices, in the mode, below autograd.
using NewSymbolsRule = std::optional<std::vector<c10::IValue>> (*)(NewSymbolsCall& call);

// Set once, by rules/; returns null for an operator that never returns new symbols.
using NewSymbolsFinder = NewSymbolsRule (*)(const OpTraits& traits);
void set_new_symbols_rules(NewSymbolsFinder finder);

// Handles the call if it depends on unknown values and its mode has an environment that allows symbols for them;
// returns whether it did. Cheap for operators that do not depend on values.
bool answer_with_new_symbols(Call& call, const ModePtr& mode);

}  // namespace torchfake
