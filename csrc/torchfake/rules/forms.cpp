// The in-place and out= forms of an operator: its plain form says what the result is, and the argument takes it.
#include <torchfake/rules/forms.h>

#include <ATen/MemoryOverlap.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/Resize.h>

namespace torchfake {

namespace {

void check_castable(const at::Tensor& from, const at::Tensor& to) {
  TORCH_CHECK(
      c10::canCast(from.scalar_type(), to.scalar_type()),
      "result type ",
      from.scalar_type(),
      " can't be cast to the desired output type ",
      to.scalar_type());
}

// Runs the plain form of an operator on the arguments on the stack.
class PlainForm {
 public:
  explicit PlainForm(c10::OperatorName name) : name_(std::move(name)) {}

  void run(torch::jit::Stack* stack) const {
    c10::Dispatcher::singleton().findSchemaOrThrow(name_.name.c_str(), name_.overload_name.c_str()).callBoxed(stack);
  }

 private:
  c10::OperatorName name_;
};

class OutForm final : public c10::OperatorKernel {
 public:
  OutForm(c10::OperatorName plain, OutDtype dtype) : plain_(std::move(plain)), dtype_(dtype) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, torch::jit::Stack* stack) {
    const size_t count = op.schema().returns().size();
    const std::vector<c10::IValue> outs(stack->end() - static_cast<ptrdiff_t>(count), stack->end());
    torch::jit::drop(*stack, count);
    plain_.run(stack);
    const std::vector<c10::IValue> results(stack->end() - static_cast<ptrdiff_t>(count), stack->end());
    torch::jit::drop(*stack, count);
    for (size_t i = 0; i < count; ++i) {
      write_out(outs[i].toTensor(), results[i].toTensor(), dtype_);
    }
    stack->insert(stack->end(), outs.begin(), outs.end());
  }

 private:
  PlainForm plain_;
  OutDtype dtype_;
};

class InPlaceForm final : public c10::OperatorKernel {
 public:
  explicit InPlaceForm(c10::OperatorName plain) : plain_(std::move(plain)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, torch::jit::Stack* stack) {
    const at::Tensor self = torch::jit::peek(*stack, 0, op.schema().arguments().size()).toTensor();
    plain_.run(stack);
    const at::Tensor result = torch::jit::pop(*stack).toTensor();
    TORCH_CHECK(
        self.sizes() == result.sizes(),
        "output with shape ",
        self.sizes(),
        " doesn't match the broadcast shape ",
        result.sizes());
    check_castable(result, self);
    at::assert_no_internal_overlap(self);
    stack->emplace_back(self);
  }

 private:
  PlainForm plain_;
};

template <typename Form>
NativeKernel boxed(std::string name, std::unique_ptr<Form> form) {
  return {std::move(name), c10::KernelFunction::makeFromBoxedFunctor(std::move(form))};
}

}  // namespace

void write_out(const at::Tensor& out, const at::Tensor& result, OutDtype dtype) {
  if (dtype == OutDtype::kCastable) {
    check_castable(result, out);
  } else {
    TORCH_CHECK(
        out.scalar_type() == result.scalar_type(),
        "Expected out tensor to have dtype ",
        result.scalar_type(),
        ", but got ",
        out.scalar_type(),
        " instead");
  }
  at::assert_no_internal_overlap(out);
  if (at::native::resize_output(out, result.sizes()) && out.strides() != result.strides()) {
    out.as_strided_(result.sizes(), result.strides());
  }
}

NativeKernel out_form(std::string name, c10::OperatorName plain, OutDtype dtype) {
  return boxed(std::move(name), std::make_unique<OutForm>(std::move(plain), dtype));
}

NativeKernel in_place_form(std::string name, c10::OperatorName plain) {
  return boxed(std::move(name), std::make_unique<InPlaceForm>(std::move(plain)));
}

}  // namespace torchfake
