// Operators with out= arguments that have no meta kernel of their own: the plain operator answers, and the arguments
// are resized as the real kernel resizes them.
#include <ATen/MemoryOverlap.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/as_strided.h>

#include <torchfake/rules/kernels.h>

#include <mutex>
#include <unordered_map>

namespace torchfake {

namespace {

using Tensors = c10::SmallVector<at::Tensor, 4>;

// Whether the arguments of `plain` are those of `with_out` without the out= ones.
bool is_plain_form(const c10::FunctionSchema& plain, const c10::FunctionSchema& with_out, size_t num_out) {
  const auto& expected = with_out.arguments();
  const auto& found = plain.arguments();
  return found.size() + num_out == expected.size() &&
      std::equal(found.begin(), found.end(), expected.begin(), [](const c10::Argument& a, const c10::Argument& b) {
           return a.name() == b.name() && *a.real_type() == *b.real_type();
         });
}

c10::OperatorHandle find_plain_form(const c10::OperatorHandle& op, size_t num_out) {
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (name.name != op.operator_name().name) {
      continue;
    }
    const auto found = c10::Dispatcher::singleton().findSchema(name);
    if (found && is_plain_form(found->schema(), op.schema(), num_out)) {
      return *found;
    }
  }
  TORCH_INTERNAL_ASSERT(false, op.operator_name(), " has no form without out=");
}

c10::OperatorHandle plain_form(const c10::OperatorHandle& op, size_t num_out) {
  static std::mutex mutex;
  static auto* found = new std::unordered_map<std::string, c10::OperatorHandle>();
  std::lock_guard<std::mutex> lock(mutex);
  const std::string name = c10::toString(op.operator_name());
  auto entry = found->find(name);
  if (entry == found->end()) {
    entry = found->emplace(name, find_plain_form(op, num_out)).first;
  }
  return entry->second;
}

Tensors pop_tensors(torch::jit::Stack* stack, size_t count) {
  Tensors tensors;
  for (const c10::IValue& value : torch::jit::last(*stack, count)) {
    tensors.push_back(value.toTensor());
  }
  torch::jit::drop(*stack, count);
  return tensors;
}

void check_dtype(const c10::OperatorHandle& op, const at::Tensor& out, const at::Tensor& result) {
  TORCH_CHECK(
      c10::canCast(result.scalar_type(), out.scalar_type()),
      op.operator_name().name,
      ": result type ",
      result.scalar_type(),
      " can't be cast to the desired output type ",
      out.scalar_type());
}

// The kernel fills a contiguous result, or copies into what is there.
void resize_contiguous(const Tensors& outs, const Tensors& results) {
  for (size_t i = 0; i < outs.size(); ++i) {
    at::native::resize_output(outs[i], results[i].sizes());
  }
}

// A library that works on columns: it writes to arguments that are empty or laid out as it needs them, and otherwise
// to tensors of its own, which are copied.
void resize_as_columns(const Tensors& outs, const Tensors& results) {
  for (size_t i = 0; i < outs.size(); ++i) {
    const bool fits =
        outs[i].numel() == 0 || (outs[i].sizes() == results[i].sizes() && outs[i].strides() == results[i].strides());
    if (!fits || outs[i].scalar_type() != results[i].scalar_type()) {
      return resize_contiguous(outs, results);
    }
  }
  for (size_t i = 0; i < outs.size(); ++i) {
    if (at::native::resize_output(outs[i], results[i].sizes())) {
      outs[i].as_strided_(results[i].sizes(), results[i].strides());
    }
  }
}

using Resize = void (*)(const Tensors& outs, const Tensors& results);

template <Resize kResize>
void with_out(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const size_t num_out = op.schema().returns().size();
  const Tensors outs = pop_tensors(stack, num_out);
  plain_form(op, num_out).callBoxed(stack);
  const Tensors results = pop_tensors(stack, num_out);
  for (size_t i = 0; i < num_out; ++i) {
    check_dtype(op, outs[i], results[i]);
  }
  kResize(outs, results);
  for (const at::Tensor& out : outs) {
    stack->emplace_back(out);
  }
}

// The kernel reads its arguments while it writes: they may not overlap.
template <Resize kResize>
void with_separate_out(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const size_t num_out = op.schema().returns().size();
  const size_t num_args = op.schema().arguments().size();
  const auto arguments = torch::jit::last(*stack, num_args);
  for (const c10::IValue& out : arguments.slice(num_args - num_out)) {
    at::assert_no_internal_overlap(out.toTensor());
    for (const c10::IValue& argument : arguments.slice(0, num_args - num_out)) {
      if (argument.isTensor() && argument.toTensor().defined()) {
        at::assert_no_overlap(out.toTensor(), argument.toTensor());
      }
    }
  }
  with_out<kResize>(op, stack);
}

template <c10::BoxedKernel::BoxedKernelFunction* kFunction>
NativeKernel boxed_kernel(const char* name) {
  return {name, c10::KernelFunction::makeFromBoxedFunction<kFunction>()};
}

}  // namespace

KernelList out_argument_kernels() {
  constexpr auto* contiguous = &with_out<&resize_contiguous>;
  constexpr auto* columns = &with_out<&resize_as_columns>;
  constexpr auto* separate = &with_separate_out<&resize_contiguous>;
  return {
      boxed_kernel<contiguous>("aten::mode.values"),
      boxed_kernel<columns>("aten::geqrf.a"),
      boxed_kernel<columns>("aten::ormqr.out"),
      boxed_kernel<columns>("aten::linalg_householder_product.out"),
      boxed_kernel<columns>("aten::linalg_eig.out"),
      boxed_kernel<separate>("aten::take.out"),
      boxed_kernel<separate>("aten::index_select.out"),
  };
}

}  // namespace torchfake
