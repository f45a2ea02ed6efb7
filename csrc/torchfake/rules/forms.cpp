// The in-place and out= forms of an operator: the plain form computes the result, which is then written to the
// argument.
#include <torchfake/rules/forms.h>

#include <ATen/MemoryOverlap.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/Resize.h>

#include <torchfake/rules/results.h>

namespace torchfake {

namespace {

// Runs the plain form of an operator on the arguments of another form.
class PlainForm {
 public:
  explicit PlainForm(c10::OperatorName name) : name_(std::move(name)) {}

  // Replaces the arguments of `op` on the stack, except `outs`, by the results of the plain form. Arguments are matched
  // by name: the plain form of a factory also takes a dtype and a device, which the out= form lacks.
  void run(const c10::OperatorHandle& op, c10::ArrayRef<at::Tensor> outs, torch::jit::Stack* stack) const {
    const auto plain = c10::Dispatcher::singleton().findSchemaOrThrow(name_.name.c_str(), name_.overload_name.c_str());
    const size_t given = op.schema().arguments().size() - outs.size();
    const c10::ArrayRef<c10::IValue> values = torch::jit::last(*stack, given);
    torch::jit::Stack arguments;
    for (const c10::Argument& argument : plain.schema().arguments()) {
      const std::optional<int> index = op.schema().argumentIndexWithName(argument.name());
      if (index && static_cast<size_t>(*index) < given) {
        arguments.push_back(values[*index]);
      } else if (argument.name() == "dtype" && !outs.empty()) {
        arguments.emplace_back(outs.front().scalar_type());
      } else {
        TORCH_INTERNAL_ASSERT(
            argument.default_value(), op.operator_name(), " has no argument '", argument.name(), "' for ", name_);
        arguments.push_back(*argument.default_value());
      }
    }
    plain.callBoxed(&arguments);
    torch::jit::drop(*stack, given);
    stack->insert(stack->end(), arguments.begin(), arguments.end());
  }

 private:
  c10::OperatorName name_;
};

OutRule::Tensors pop_tensors(torch::jit::Stack* stack, size_t count) {
  OutRule::Tensors tensors;
  for (const c10::IValue& value : torch::jit::last(*stack, count)) {
    tensors.push_back(value.toTensor());
  }
  torch::jit::drop(*stack, count);
  return tensors;
}

void check_separate(const OutRule::Tensors& outs, c10::ArrayRef<c10::IValue> arguments) {
  for (const at::Tensor& out : outs) {
    at::assert_no_internal_overlap(out);
    for (const c10::IValue& argument : arguments) {
      if (argument.isTensor() && argument.toTensor().defined()) {
        at::assert_no_overlap(out, argument.toTensor());
      }
    }
  }
}

class OutForm final : public c10::OperatorKernel {
 public:
  OutForm(c10::OperatorName plain, OutRule rule) : plain_(std::move(plain)), rule_(rule) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, torch::jit::Stack* stack) {
    const size_t count = op.schema().returns().size();
    const OutRule::Tensors outs = pop_tensors(stack, count);
    if (rule_.separate) {
      check_separate(outs, torch::jit::last(*stack, op.schema().arguments().size() - count));
    }
    plain_.run(op, outs, stack);
    rule_.write(outs, pop_tensors(stack, count));
    stack->insert(stack->end(), outs.begin(), outs.end());
  }

 private:
  PlainForm plain_;
  OutRule rule_;
};

class InPlaceForm final : public c10::OperatorKernel {
 public:
  explicit InPlaceForm(c10::OperatorName plain) : plain_(std::move(plain)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, torch::jit::Stack* stack) {
    const at::Tensor self = torch::jit::peek(*stack, 0, op.schema().arguments().size()).toTensor();
    plain_.run(op, {}, stack);
    const at::Tensor result = torch::jit::pop(*stack).toTensor();
    TORCH_CHECK(
        self.sizes() == result.sizes(),
        "output with shape ",
        self.sizes(),
        " doesn't match the broadcast shape ",
        result.sizes());
    check_castable(result.scalar_type(), self.scalar_type());
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
    check_castable(result.scalar_type(), out.scalar_type());
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

namespace {

template <OutDtype kDtype>
void write_each(const OutRule::Tensors& outs, const OutRule::Tensors& results) {
  for (size_t i = 0; i < outs.size(); ++i) {
    write_out(outs[i], results[i], kDtype);
  }
}

}  // namespace

OutRule::OutRule(OutDtype dtype)
    : OutRule(dtype == OutDtype::kSame ? &write_each<OutDtype::kSame> : &write_each<OutDtype::kCastable>) {}

void write_contiguous(const OutRule::Tensors& outs, const OutRule::Tensors& results) {
  for (size_t i = 0; i < outs.size(); ++i) {
    check_castable(results[i].scalar_type(), outs[i].scalar_type());
  }
  write_copy(outs, results);
}

void write_copy(const OutRule::Tensors& outs, const OutRule::Tensors& results) {
  for (size_t i = 0; i < outs.size(); ++i) {
    at::native::resize_output(outs[i], results[i].sizes());
  }
}

void write_columns(const OutRule::Tensors& outs, const OutRule::Tensors& results) {
  for (size_t i = 0; i < outs.size(); ++i) {
    const bool fits =
        outs[i].numel() == 0 || (outs[i].sizes() == results[i].sizes() && outs[i].strides() == results[i].strides());
    if (!fits || outs[i].scalar_type() != results[i].scalar_type()) {
      return write_contiguous(outs, results);
    }
  }
  for (size_t i = 0; i < outs.size(); ++i) {
    if (at::native::resize_output(outs[i], results[i].sizes())) {
      // The result may be a slice of a larger tensor; the argument becomes the same slice.
      outs[i].resize_({static_cast<int64_t>(results[i].storage().nbytes() / results[i].itemsize())});
      outs[i].as_strided_(results[i].sizes(), results[i].strides());
    }
  }
}

NativeKernel out_form(std::string name, c10::OperatorName plain, OutRule rule) {
  return boxed(std::move(name), std::make_unique<OutForm>(std::move(plain), rule));
}

NativeKernel in_place_form(std::string name, c10::OperatorName plain) {
  return boxed(std::move(name), std::make_unique<InPlaceForm>(std::move(plain)));
}

}  // namespace torchfake
