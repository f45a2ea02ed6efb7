// Rules for operators that PyTorch decomposes above the Fake key, where the decomposition looks at values.
#include <ATen/core/Reduction.h>
#include <ATen/ops/ctc_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/max_pool1d_with_indices.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <torchfake/core/errors.h>
#include <torchfake/dispatch/known_values.h>
#include <torchfake/dispatch/plain_cpu.h>
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
  std::vector<int64_t> sizes = self.sizes().vec();
  sizes.push_back(num_classes);
  at::Tensor result = at::zeros(sizes, self.options());
  result.scatter_(-1, self.unsqueeze(-1), 1);
  torch::jit::drop(*call.stack, 2);
  call.stack->emplace_back(std::move(result));
  return true;
}

// max_pool1d(self, kernel_size, stride, padding, dilation, ceil_mode). On the CPU, where no gradient is wanted, it loops
// over the data.
bool max_pool1d(const Call& call) {
  const at::Tensor self = call.arg(0).toTensor();
  if (!self.is_cpu() || (self.requires_grad() && at::GradMode::is_enabled()) || self._fw_grad(0).defined()) {
    return false;
  }
  const auto numbers = [&](size_t arg) { return call.arg(arg).toIntVector(); };
  at::Tensor pooled = std::get<0>(at::max_pool1d_with_indices(
      self.dim() == 2 ? self.unsqueeze(0) : self,
      numbers(1),
      numbers(2),
      numbers(3),
      numbers(4),
      call.arg(5).toBool()));
  pooled = pooled.clone(at::MemoryFormat::Contiguous);  // not a view, as what comes out of the squeezed picture is
  if (self.dim() == 2) {
    pooled.squeeze_(0);
  }
  torch::jit::drop(*call.stack, call.num_args());
  call.stack->emplace_back(std::move(pooled));
  return true;
}

// The decomposition reads the argument through a pointer: lengths, or places to split at.
enum class Where : uint8_t { kHost, kAnywhere };

template <Where kWhere, size_t... kArgs>
bool needs_values(const Call& call) {
  for (const TensorArg& tensor : call.tensors()) {
    const bool is_read = ((tensor.arg == kArgs) || ...);
    if (is_read && tensor.fake != nullptr && (kWhere == Where::kAnywhere || tensor.fake->claimed_device().is_cpu()) &&
        !is_in_memory(*tensor.fake)) {
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

// _pad_packed_sequence(data, batch_sizes, batch_first, padding_value, total_length) -> (padded, lengths). The
// decomposition writes the lengths through a pointer.
bool pad_packed_sequence(const Call& call) {
  needs_values<Where::kHost, 1>(call);
  const at::Tensor data = call.arg(0).toTensor();
  const at::Tensor batch_sizes = call.arg(1).toTensor();
  const bool batch_first = call.arg(2).toBool();
  const at::Scalar padding_value = call.arg(3).toScalar();
  const int64_t total_length = call.arg(4).toInt();
  const FakeTensorImpl& fake = *as_fake(batch_sizes);
  const at::Tensor values = *known_tensor(fake, std::numeric_limits<int64_t>::max());
  const auto steps = values.accessor<int64_t, 1>();
  const int64_t longest = steps.size(0);
  TORCH_CHECK(
      total_length <= 0 || total_length >= longest,
      "Expected total_length to be at least the length of the longest sequence in input, but got total_length=",
      total_length,
      " and max sequence length being ",
      longest);
  std::vector<int64_t> sizes = data.sizes().vec();
  sizes[0] = steps[0];
  sizes.insert(sizes.begin(), std::max(longest, total_length));
  at::Tensor padded = at::full(sizes, padding_value, data.options());
  std::vector<int64_t> lengths(steps[0], 0);
  for (int64_t step = 0, offset = 0; step < longest; offset += steps[step], ++step) {
    padded.select(0, step).narrow(0, 0, steps[step]).copy_(data.narrow(0, offset, steps[step]));
    for (int64_t i = 0; i < steps[step]; ++i) {
      lengths[i] = step + 1;
    }
  }
  at::Tensor real_lengths;
  {
    PlainCpu plain;
    real_lengths = at::empty({steps[0]}, at::TensorOptions().dtype(c10::kLong).device(c10::kCPU));
    std::copy(lengths.begin(), lengths.end(), real_lengths.data_ptr<int64_t>());
  }
  at::Tensor fake_lengths = lift(real_lengths, fake.mode(), /*copy=*/false);
  torch::jit::drop(*call.stack, call.num_args());
  call.stack->emplace_back(batch_first ? padded.transpose(0, 1) : padded);
  call.stack->emplace_back(std::move(fake_lengths));
  return true;
}

// ctc_loss(log_probs, targets, input_lengths, target_lengths, blank, reduction, zero_infinity). To average, the
// decomposition writes the lengths into a tensor through a pointer.
bool ctc_loss(const Call& call) {
  if (call.arg(5).toInt() != at::Reduction::Mean) {
    return false;
  }
  const std::vector<int64_t> target_lengths = call.arg(3).toIntVector();
  const at::Tensor losses = at::ctc_loss(
      call.arg(0).toTensor(),
      call.arg(1).toTensor(),
      call.arg(2).toIntVector(),
      target_lengths,
      call.arg(4).toInt(),
      at::Reduction::None,
      call.arg(6).toBool());
  at::Tensor mean = losses.div(at::ones({static_cast<int64_t>(target_lengths.size())}, losses.options())).mean();
  torch::jit::drop(*call.stack, call.num_args());
  call.stack->emplace_back(std::move(mean));
  return true;
}

constexpr std::array<CompositeRule, 11> kRules = {{
    {"max_pool1d", &max_pool1d},
    {"one_hot", &one_hot},
    {"scaled_dot_product_attention", &scaled_dot_product_attention},
    {"tensor_split.tensor_indices_or_sections", &needs_values<Where::kHost, 1>},
    {"ctc_loss.IntList", &ctc_loss},
    {"ctc_loss.Tensor", &needs_values<Where::kAnywhere, 2, 3>},
    {"_pad_packed_sequence", &pad_packed_sequence},
    {"lstm.data", &needs_values<Where::kHost, 1>},
    {"gru.data", &needs_values<Where::kHost, 1>},
    {"rnn_tanh.data", &needs_values<Where::kHost, 1>},
    {"rnn_relu.data", &needs_values<Where::kHost, 1>},
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
    (library.impl(kRules[kIndices].name, torch::CppFunction::makeFromBoxedFunction<&composite_kernel<kIndices>>()),
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
