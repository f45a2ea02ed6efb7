// Rules for operators that PyTorch decomposes above the Fake key: how they are called and installed.
#include <torchfake/rules/composites.h>

#include <ATen/ops/empty.h>

#include <torchfake/core/activation.h>
#include <torchfake/core/errors.h>
#include <torchfake/core/plain_cpu.h>
#include <torchfake/core/pytorch_errors.h>
#include <torchfake/dispatch/refusals.h>
#include <torchfake/values/known_values.h>

#include <algorithm>
#include <limits>

namespace torchfake {

void decompose(const Call& call) {
  call.op.callBoxedForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd, *call.stack);
}

bool of_data_in_memory(const Call& call) {
  try {
    decompose(call);
  } catch (const FakeTensorError&) {
    throw;
  } catch (const c10::Error& error) {
    if (!is_data_access(error)) {
      throw;
    }
    raise(
        ErrorKind::kUnsupportedOperator,
        call.op_name(),
        "it reads or writes tensor data through pointers, and a fake tensor has no data. Keep this call out of "
        "the fake run.");
  }
  return true;
}

void refuse_unknown(const Call& call, const TensorArg& tensor) {
  raise(
      ErrorKind::kDataDependentOutput,
      call.op_name(),
      call.describe(tensor) +
          " is read, but its values are unknown. Values are known only if they are derived from small "
          "constants; pass them as such.");
}

namespace {

const TensorArg& defined_tensor(const Call& call, size_t arg) {
  const auto found = std::find_if(
      call.tensors().begin(), call.tensors().end(), [&](const TensorArg& tensor) { return tensor.arg == arg; });
  TORCH_CHECK(found != call.tensors().end(), call.op_name(), ": expected a tensor as argument ", arg, ", got none");
  return *found;
}

}  // namespace

std::optional<std::vector<int64_t>> values_of(const Call& call, size_t arg) {
  const TensorArg& tensor = defined_tensor(call, arg);
  std::optional<at::Tensor> values = tensor.fake == nullptr
      ? call.arg(arg).toTensor()
      : read_values(*tensor.fake, std::numeric_limits<int64_t>::max());
  if (!values) {
    return std::nullopt;
  }
  PlainCpu plain;
  const at::Tensor numbers = values->to(c10::kCPU).to(c10::kLong).contiguous();
  const auto* first = numbers.const_data_ptr<int64_t>();
  return std::vector<int64_t>(first, first + numbers.numel());
}

std::vector<int64_t> known_values_of(const Call& call, size_t arg) {
  std::optional<std::vector<int64_t>> values = values_of(call, arg);
  if (!values) {
    refuse_unknown(call, defined_tensor(call, arg));
  }
  return *std::move(values);
}

at::Tensor known_numbers(c10::IntArrayRef numbers, const ModePtr& mode) {
  at::Tensor real;
  {
    PlainCpu plain;
    real = at::empty({static_cast<int64_t>(numbers.size())}, at::TensorOptions().dtype(c10::kLong).device(c10::kCPU));
    std::copy(numbers.begin(), numbers.end(), real.data_ptr<int64_t>());
  }
  return lift(real, mode, /*copy=*/false);
}

void call_boxed(CompositeRule rule, const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const Call call(op, OpTraits::of(op), keys, stack);
  const bool answered = call.has_fake() && at_the_boundary([&] { return rule(call); });
  if (!answered) {
    decompose(call);
  }
}

c10::DispatchKeySet backend_of(c10::DispatchKeySet keys) {
  const c10::BackendComponent backend = keys.highestBackendKey();
  return c10::DispatchKeySet(
      backend == c10::BackendComponent::InvalidBit
          ? c10::DispatchKey::CPU
          : c10::toRuntimePerBackendFunctionalityKey(c10::DispatchKey::Dense, backend));
}

namespace {

std::vector<torch::Library>& libraries() {
  static auto* libraries = new std::vector<torch::Library>();
  return *libraries;
}

// Other threads may be calling these operators, and the dispatcher reads its tables without a lock. During installation
// they find the old entry, this one, or a mixture; both are stateless and behave the same for real tensors.
void install() {
  for (const c10::DispatchKey key : kDenseAutogradKeys) {
    torch::Library& library = libraries().emplace_back(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
    for (const auto family :
         {&checking_composites,
          &length_composites,
          &library_composites,
          &pointer_composites,
          &series_composites,
          &symbolic_composites}) {
      for (const auto add : family()) {
        add(library);
      }
    }
  }
}

// See Note [Activation].
const RegisterChange g_composites(Span::kOnceActive, {&install, [] { libraries().clear(); }});

}  // namespace

}  // namespace torchfake
