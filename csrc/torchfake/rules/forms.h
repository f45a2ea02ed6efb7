// Kernels from functions, and in-place and out= forms of an operator from its plain form.
#pragma once

#include <ATen/Operators.h>

#include <torchfake/rules/kernels.h>

#include <tuple>
#include <utility>

namespace torchfake {

// The name of an operator: "aten::histc.out" for at::_ops::histc_out.
template <typename Op>
std::string name_of() {
  const std::string overload = Op::overload_name;
  return overload.empty() ? Op::name : Op::name + ("." + overload);
}

template <typename Function>
struct Arity;

template <typename Return, typename... Args>
struct Arity<Return (*)(Args...)> {
  static constexpr size_t kValue = sizeof...(Args);
};

// Calls a function with as many of the operator's leading arguments as it takes, ignoring the others.
template <typename Signature, auto kFunction>
struct LeadingArguments;

template <typename Return, typename... Args, auto kFunction>
struct LeadingArguments<Return(Args...), kFunction> {
  static Return call(Args... args) {
    return apply(std::forward_as_tuple(args...), std::make_index_sequence<Arity<decltype(kFunction)>::kValue>());
  }

 private:
  template <typename Tuple, size_t... kIndices>
  static Return apply([[maybe_unused]] Tuple args, std::index_sequence<kIndices...> /*taken*/) {
    return kFunction(std::get<kIndices>(args)...);
  }
};

// The kernel of an operator: kernel<at::_ops::histc, &histc>(). The function takes the operator's leading arguments,
// with plain integers for symbolic ones; the compiler checks this.
template <typename Op, auto kFunction>
NativeKernel kernel() {
  using Signature = typename c10::fn_remove_symint<typename Op::schema>::type;
  return native_kernel<Signature, &LeadingArguments<Signature, kFunction>::call>(name_of<Op>().c_str());
}

// The dtypes allowed for an out= argument: any that the result can be cast to, or only the result's.
enum class OutDtype : uint8_t { kCastable, kSame };

// Gives `out` the sizes of `result`, and its strides if the sizes were different. Throws if the dtypes do not match or
// `out` overlaps itself.
void write_out(const at::Tensor& out, const at::Tensor& result, OutDtype dtype);

// How out= arguments receive the results of the plain form.
struct OutRule {
  using Tensors = c10::SmallVector<at::Tensor, 4>;
  using Write = void (*)(const Tensors& outs, const Tensors& results);

  OutRule(Write write, bool separate = false) : write(write), separate(separate) {}
  OutRule(OutDtype dtype);  // write_out for each

  Write write;
  bool separate;  // the kernel reads its arguments while writing: they must not overlap
};

// The kernel writes a contiguous result, or copies into the existing memory.
void write_contiguous(const OutRule::Tensors& outs, const OutRule::Tensors& results);

// The result is copied, whatever the dtypes.
void write_copy(const OutRule::Tensors& outs, const OutRule::Tensors& results);

// For a column-major library: it writes directly to arguments that are empty or already in its layout, and otherwise to
// its own tensors, which are then copied.
void write_columns(const OutRule::Tensors& outs, const OutRule::Tensors& results);

// The out= and in-place forms of an operator by their names: the plain form computes the result.
NativeKernel out_form(std::string name, c10::OperatorName plain, OutRule rule);
NativeKernel in_place_form(std::string name, c10::OperatorName plain);

// The out= form of `Op`, whose own kernel must not be defined in terms of it.
template <typename OutOp, typename Op>
NativeKernel out_form(OutRule rule = OutDtype::kCastable) {
  return out_form(name_of<OutOp>(), c10::OperatorName(Op::name, Op::overload_name), rule);
}

// The form of `Op` that overwrites its first argument.
template <typename InPlaceOp, typename Op>
NativeKernel in_place_form() {
  return in_place_form(name_of<InPlaceOp>(), c10::OperatorName(Op::name, Op::overload_name));
}

}  // namespace torchfake
