// Derivatives over symbols of operators whose formulas in PyTorch read sizes as numbers.
#include <ATen/TensorOperators.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <torchfake/core/activation.h>
#include <torchfake/core/dispatch_keys.h>
#include <torchfake/core/errors.h>
#include <torchfake/rules/composites.h>

#include <algorithm>

namespace torchfake {

namespace {

// Note [Derivatives over symbols]
// Some derivative formulas of PyTorch were never written for symbols: that of max() reads the sizes of its input, and
// would fix them (Note [Sizes read as numbers]). A call of such an operator that has symbols and records a gradient is
// handled here, on autograd's keys, with the same formula over symbols. Every other call goes on to PyTorch's own
// kernel, which the dispatcher's table still holds at AutogradOther.

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

c10::DispatchKeySet pytorchs_own(c10::DispatchKeySet keys) {
  return (keys - c10::DispatchKeySet(c10::DispatchKey::AutogradFunctionality)) |
      c10::DispatchKeySet(c10::DispatchKey::AutogradOther);
}

bool records_gradient(const Call& call) {
  return std::any_of(call.tensors().begin(), call.tensors().end(), [](const TensorArg& tensor) {
    return tensor.impl->requires_grad();
  });
}

bool has_tangent(const Call& call) {
  return std::any_of(call.tensors().begin(), call.tensors().end(), [](const TensorArg& tensor) {
    using Pointer = c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
    return at::Tensor(Pointer::reclaim_copy(tensor.impl))._fw_grad(0).defined();
  });
}

template <typename Op, CompositeRule kRule, typename Schema = typename Op::schema>
struct GradientKernel;

template <typename Op, CompositeRule kRule, typename Result, typename... Args>
struct GradientKernel<Op, kRule, Result(Args...)> {
  static Result run(c10::DispatchKeySet keys, Args... args) {
    if (C10_LIKELY(!of_symbols(keys) || !c10::GradMode::is_enabled())) {
      return Op::redispatch(pytorchs_own(keys), std::forward<Args>(args)...);
    }
    static const c10::OperatorHandle op = c10::Dispatcher::singleton().findSchemaOrThrow(Op::name, Op::overload_name);
    static const auto boxed = c10::KernelFunction::makeFromBoxedFunction<&run_boxed>();
    return boxed.template call<Result, Args...>(op, keys, std::forward<Args>(args)...);
  }
  static void run_boxed(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    const Call call(op, OpTraits::of(op), keys, stack);
    const bool is_answered = call.has_fake() && has_symbols(call) && records_gradient(call) && !has_tangent(call) &&
        at_the_boundary([&] { return kRule(call); });
    if (!is_answered) {
      op.redispatchBoxed(pytorchs_own(keys), stack);
    }
  }
};

// ---- Reductions to one element --------------------------------------------------------------------------------------

// The gradient goes in equal parts to all elements that equal the result.
struct ToEqualElements : public torch::autograd::Function<ToEqualElements> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& self, at::Tensor (*reduce)(const at::Tensor&)) {
    const at::AutoDispatchBelowAutograd below;
    at::Tensor result = reduce(self);
    context->save_for_backward({self, result});
    return result;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& self = saved[0];
    const at::Tensor mask = (self == saved[1]).logical_or_(self.isnan().logical_and_(saved[1].isnan()));
    const at::Tensor each = gradients[0] / mask.sum();
    return {
        self.is_cuda() ? mask * each : self.new_zeros_symint(self.sym_sizes()).masked_fill_(mask, each), Variable()};
  }
};

template <typename Op>
bool to_equal_elements(const Call& call) {
  answer_with(call, ToEqualElements::apply(call.arg(0).toTensor(), &Op::call));
  return true;
}

// ---- Signs ----------------------------------------------------------------------------------------------------------

struct OfNothing : public torch::autograd::Function<OfNothing> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& self) {
    const at::AutoDispatchBelowAutograd below;
    context->save_for_backward({self});
    return self.sgn();
  }

  static variable_list backward(AutogradContext* context, const variable_list& /*gradients*/) {
    const at::Tensor self = context->get_saved_variables()[0];
    return {self.new_zeros_symint(self.sym_sizes())};
  }
};

// (self): a real one has no slope.
bool sgn(const Call& call) {
  const at::Tensor self = call.arg(0).toTensor();
  if (self.is_complex()) {
    return false;
  }
  answer_with(call, OfNothing::apply(self));
  return true;
}

// ---- The table ------------------------------------------------------------------------------------------------------

template <typename Op, CompositeRule kRule>
void gradient(torch::Library& library) {
  library.impl(name_of<Op>().c_str(), TORCH_FN((GradientKernel<Op, kRule>::run)));
}

template <typename... Ops>
void reductions(torch::Library& library) {
  (gradient<Ops, &to_equal_elements<Ops>>(library), ...);
}

std::vector<torch::Library>& libraries() {
  static auto* libraries = new std::vector<torch::Library>();
  return *libraries;
}

void install() {
  namespace ops = at::_ops;
  for (const c10::DispatchKey key : kDenseAutogradKeys) {
    if (key == c10::DispatchKey::AutogradOther || key == c10::DispatchKey::Fake) {
      continue;  // PyTorch's own kernel stays at the first, and the second records no gradient
    }
    torch::Library& library = libraries().emplace_back(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
    reductions<ops::max, ops::min, ops::median, ops::nanmedian>(library);
    gradient<ops::sgn, &sgn>(library);
  }
}

// See Note [Activation].
const RegisterChange g_gradients(Span::kOnceActive, {&install, [] { libraries().clear(); }});

}  // namespace

}  // namespace torchfake
