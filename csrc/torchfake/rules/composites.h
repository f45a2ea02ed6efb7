// Rules for operators that PyTorch decomposes above the Fake key, if the decomposition reads values, checks which
// libraries are available, or uses sizes as numbers. One file per family.
#pragma once

#include <torch/library.h>

#include <torchfake/dispatch/symbolic_call.h>
#include <torchfake/rules/forms.h>
#include <torchfake/rules/rules.h>
#include <torchfake/symbolic/shape_env.h>

namespace torchfake {

// Note [Composite operators with a rule]
// An operator that has only a decomposition runs it on the autograd keys, before the engine sees the call. If that
// decomposition reads values that a fake does not have, although the result does not depend on them, a kernel of ours
// on those keys handles calls with a fake among the arguments. All other calls go on to the decomposition, unboxed: the
// dispatcher's table holds it at the backend's own key, so the detour costs one table lookup.
//
// A rule leaves the result on the stack in place of the arguments and returns true; or changes nothing and returns
// false.
using CompositeRule = bool (*)(const Call& call);

// Adds rules to the library of one key.
using CompositeList = std::vector<void (*)(torch::Library& library)>;

// Families.
CompositeList checking_composites();
CompositeList length_composites();
CompositeList library_composites();
CompositeList pointer_composites();
CompositeList symbolic_composites();
CompositeList series_composites();

// Runs the decomposition of a call: replaces the arguments on the stack by the results.
void decompose(const Call& call);

// A rule for calls with symbols only.
template <CompositeRule kRule>
bool over_symbols(const Call& call) {
  return has_symbols(call) && kRule(call);
}

// Rules of operators that also have a rule for numbers.
bool cov_of_symbols(const Call& call);
bool istft_of_symbols(const Call& call);

// The rule for decompositions that access data through a pointer or print it in an error message. PyTorch's own message
// for missing data is about kernels called during tracing.
bool of_data_in_memory(const Call& call);

// Throws the error for an argument with unknown values that the decomposition reads.
[[noreturn]] void refuse_unknown(const Call& call, const TensorArg& tensor);

// The values of the integers in a tensor argument, on any device: those of a real tensor, or those known of a fake.
// Returns nothing if they are unknown, and throws if the argument is undefined.
std::optional<std::vector<int64_t>> values_of(const Call& call, size_t arg);
// The same, but throws if the values are unknown.
std::vector<int64_t> known_values_of(const Call& call, size_t arg);

// A tensor with these numbers as known values. at::tensor() would write them through a data pointer.
at::Tensor known_numbers(c10::IntArrayRef numbers, const ModePtr& mode);

// Tries the rule on a boxed call, and decomposes the call if the rule does not apply.
void call_boxed(CompositeRule rule, const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

// Conditions on the keys of the arguments under which a rule is tried: a fake may be among them (`keys` covers all of
// them, unless Fake is excluded from dispatch), or a fake that may claim a device other than the CPU.
inline bool of_fakes(c10::DispatchKeySet keys) {
  return keys.has(c10::DispatchKey::Fake) || c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::Fake);
}
inline bool of_fakes_on_devices(c10::DispatchKeySet keys) {
  return of_fakes(keys) && keys.highestBackendKey() > c10::BackendComponent::CPUBit;
}
// The arguments may contain a symbol.
inline bool of_symbols(c10::DispatchKeySet keys) {
  return ShapeEnv::exist() && of_fakes(keys);
}

// The key at which the dispatcher holds the decomposition of an operator that has no other kernel.
c10::DispatchKeySet backend_of(c10::DispatchKeySet keys);

template <typename Op, auto kWhen, CompositeRule kRule, typename Schema = typename Op::schema>
struct CompositeKernel;

template <typename Op, auto kWhen, CompositeRule kRule, typename Result, typename... Args>
struct CompositeKernel<Op, kWhen, kRule, Result(Args...)> {
  static Result run(c10::DispatchKeySet keys, Args... args) {
    if (C10_LIKELY(!kWhen(keys))) {
      return Op::redispatch(backend_of(keys), std::forward<Args>(args)...);
    }
    static const c10::OperatorHandle op = c10::Dispatcher::singleton().findSchemaOrThrow(Op::name, Op::overload_name);
    static const auto boxed = c10::KernelFunction::makeFromBoxedFunction<&run_boxed>();
    return boxed.template call<Result, Args...>(op, keys, std::forward<Args>(args)...);
  }
  static void run_boxed(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    call_boxed(kRule, op, keys, stack);
  }
};

// Decomposes `Op` with a `Scope` alive: SelectsAll, for example.
template <typename Op, typename Scope, typename Schema = typename Op::schema>
struct ScopedKernel;

template <typename Op, typename Scope, typename Result, typename... Args>
struct ScopedKernel<Op, Scope, Result(Args...)> {
  static Result run(c10::DispatchKeySet keys, Args... args) {
    const Scope scope;
    return Op::redispatch(backend_of(keys), std::forward<Args>(args)...);
  }
};

// The same rule for each of `Ops`: composite<&one_hot, &of_fakes, at::_ops::one_hot>.
template <CompositeRule kRule, auto kWhen, typename... Ops>
void composite(torch::Library& library) {
  (library.impl(name_of<Ops>().c_str(), TORCH_FN((CompositeKernel<Ops, kWhen, kRule>::run))), ...);
}
template <typename Scope, typename... Ops>
void composite_within(torch::Library& library) {
  (library.impl(name_of<Ops>().c_str(), TORCH_FN((ScopedKernel<Ops, Scope>::run))), ...);
}

}  // namespace torchfake
