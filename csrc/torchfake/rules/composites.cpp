// Rules for operators that PyTorch decomposes above the Fake key, where the decomposition looks at values.
#include <ATen/ops/arange.h>
#include <ATen/ops/eq.h>
#include <torch/library.h>

#include <torchfake/core/errors.h>
#include <torchfake/dispatch/known_values.h>
#include <torchfake/rules/attention.h>
#include <torchfake/rules/rules.h>

#include <limits>

namespace torchfake {

namespace {

// Note [Composite operators with a rule]
// An operator that has only a decomposition runs it on the autograd keys, before the engine sees anything. Where that
// decomposition reads values that a fake does not have, although the result does not depend on them, a kernel of ours
// on those keys takes calls with a fake among the arguments; all others go to the decomposition as before.
struct CompositeRule {
  const char* name;
  // Leaves the result on the stack in place of the arguments and returns true; or changes nothing and returns false.
  bool (*run)(const Call& call);
};

// The decomposition checks on the CPU that the indices are in range.
bool one_hot(const Call& call) {
  const at::Tensor self = call.arg(0).toTensor();
  const int64_t num_classes = call.arg(1).toInt();
  if (num_classes < 1 || self.numel() == 0 || self.scalar_type() != c10::kLong) {
    return false;
  }
  const at::Tensor classes = at::arange(num_classes, self.options());
  at::Tensor result = at::eq(self.unsqueeze(-1), classes).to(c10::kLong);
  torch::jit::drop(*call.stack, 2);
  call.stack->emplace_back(std::move(result));
  return true;
}

// The decomposition reads the argument through a pointer: lengths, or places to split at.
template <size_t... kArgs>
bool needs_values(const Call& call) {
  for (const TensorArg& tensor : call.tensors()) {
    const bool is_read = ((tensor.arg == kArgs) || ...);
    if (is_read && tensor.fake != nullptr && tensor.fake->claimed_device().is_cpu() &&
        !known_tensor(*tensor.fake, std::numeric_limits<int64_t>::max())) {
      raise(
          ErrorKind::kDataDependentOutput,
          call.op_name(),
          call.describe(tensor) +
              " is read, and this fake tensor holds no values. Values are known only where they follow from small "
              "constants; pass them as such.");
    }
  }
  return false;
}

constexpr std::array<CompositeRule, 9> kRules = {{
    {"one_hot", &one_hot},
    {"scaled_dot_product_attention", &scaled_dot_product_attention},
    {"tensor_split.tensor_indices_or_sections", &needs_values<1>},
    {"ctc_loss.Tensor", &needs_values<2, 3>},
    {"_pad_packed_sequence", &needs_values<1>},
    {"lstm.data", &needs_values<1>},
    {"gru.data", &needs_values<1>},
    {"rnn_tanh.data", &needs_values<1>},
    {"rnn_relu.data", &needs_values<1>},
}};

template <size_t kIndex>
void composite_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const Call call(op, OpTraits::of(op), keys, stack);
  const bool answered = call.has_fake() && at_the_boundary([&] { return kRules[kIndex].run(call); });
  if (!answered) {
    op.callBoxedForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd, *stack);
  }
}

template <size_t... kIndices>
void install(std::vector<torch::Library>& libraries, std::index_sequence<kIndices...> /*rules*/) {
  for (const c10::DispatchKey key : kDenseAutogradKeys) {
    libraries.emplace_back(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
    torch::Library& library = libraries.back();
    (library.impl(
         kRules[kIndices].name, torch::CppFunction::makeFromBoxedFunction<&composite_kernel<kIndices>>()),
     ...);
  }
}

struct Installer {
  Installer() {
    install(libraries, std::make_index_sequence<kRules.size()>());
  }
  std::vector<torch::Library> libraries;
};

[[maybe_unused]] const Installer* const g_installer = new Installer();

}  // namespace

}  // namespace torchfake
