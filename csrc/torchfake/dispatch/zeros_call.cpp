// Kernel, as a fallback: runs the real CPU kernel on zeros.
#include <torchfake/dispatch/zeros_call.h>

#include <ATen/EmptyTensor.h>

#include <torchfake/core/errors.h>
#include <torchfake/core/kernel_environment.h>
#include <torchfake/core/plain_cpu.h>
#include <torchfake/dispatch/map_tensors.h>
#include <torchfake/dispatch/wrap_outputs.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace torchfake {

namespace {

constexpr size_t kMaxBytes = size_t{64} << 20;

[[noreturn]] void refuse(const Call& call, const std::string& why) {
  raise(
      ErrorKind::kUnsupportedOperator,
      call.op_name(),
      "this operator has neither a meta kernel nor a decomposition, and " + why +
          ". For an operator of your own, register one with torch.library.register_fake.");
}

// The engine would not notice what such a kernel does to the values of fakes.
[[noreturn]] void refuse_undeclared(const Call& call, const std::string& what) {
  raise(
      ErrorKind::kUnsupportedMutationAliasing,
      call.op_name(),
      "its CPU kernel, tried on zeros, " + what +
          ", which its schema does not declare. Declare it there, or register a fake implementation with "
          "torch.library.register_fake.");
}

// The bytes of the inputs as stored and as copied: an expanded tensor occupies little memory.
size_t bytes_of(const Call& call) {
  size_t bytes = 0;
  for (const TensorArg& tensor : call.tensors()) {
    const size_t nbytes = tensor.impl->has_storage() ? tensor.impl->unsafe_storage().nbytes() : 0;
    bytes += std::max(nbytes, static_cast<size_t>(tensor.impl->numel()) * tensor.impl->itemsize());
  }
  return bytes;
}

// PyTorch's own operators that reach this point are known to return the same metadata for zeros as for other values.
void refuse_values(const Call& call) {
  for (const c10::Argument& result : call.op.schema().returns()) {
    const c10::TypeKind kind = result.real_type()->kind();
    if (!call.traits.is_builtin && kind != c10::TypeKind::TensorType && kind != c10::TypeKind::ListType) {
      refuse(call, "it returns a value, which its CPU kernel would compute from zeros");
    }
  }
}

// Whether this operator is user-defined: neither PyTorch's nor from a library whose operators PyTorch also runs on
// zeros.
bool is_of_program(const OpTraits& traits) {
  constexpr std::array<std::string_view, 7> kLibraries = {
      "debugprims", "quantized", "torchaudio", "torchtext", "torchvision", "vision", "xla"};
  const std::string_view library = std::string_view(traits.name).substr(0, traits.name.find("::"));
  return !traits.is_builtin && std::find(kLibraries.begin(), kLibraries.end(), library) == kLibraries.end();
}

// Tensors of zeros that replace the fakes, with one storage per storage of the fakes.
class Zeros {
 public:
  explicit Zeros(int fill) : fill_(fill) {}

  at::Tensor of(const at::Tensor& tensor) {
    const FakeTensorImpl* fake = tensor.defined() ? as_fake(tensor) : nullptr;
    if (fake == nullptr) {
      return tensor;
    }
    for (const auto& [key, made] : made_) {
      if (key.is_same(tensor)) {
        return made;
      }
    }
    at::Tensor zeros = cpu_tensor_over(bytes_for(*fake), *fake);
    if (fill_ != 0) {
      PlainCpu plain;
      zeros.fill_(fill_);
    }
    made_.emplace_back(tensor, zeros);
    return zeros;
  }

  // The fake that `zeros` replaces, or nullopt.
  std::optional<at::Tensor> fake_of(const at::Tensor& zeros) const {
    for (const auto& [fake, made] : made_) {
      if (made.is_same(zeros)) {
        return fake;
      }
    }
    return std::nullopt;
  }

  // A fake whose replacement shares its storage with `zeros`, or nullopt.
  std::optional<at::Tensor> base_of(const at::Tensor& zeros) const {
    for (const auto& [fake, made] : made_) {
      if (made.storage().is_alias_of(zeros.storage())) {
        return fake;
      }
    }
    return std::nullopt;
  }

 private:
  c10::intrusive_ptr<c10::StorageImpl> bytes_for(const FakeTensorImpl& fake) {
    const c10::StorageImpl* key = fake.unsafe_storage().unsafeGetStorageImpl();
    for (const auto& [known, bytes] : storages_) {
      if (known == key) {
        return bytes;
      }
    }
    auto bytes = zero_bytes(fake.unsafe_storage().nbytes());
    storages_.emplace_back(key, bytes);
    return bytes;
  }

  const int fill_;
  std::vector<std::pair<at::Tensor, at::Tensor>> made_;
  std::vector<std::pair<const c10::StorageImpl*, c10::intrusive_ptr<c10::StorageImpl>>> storages_;
};

bool are_zeros(const at::Tensor& tensor) {
  const auto* bytes = static_cast<const char*>(tensor.storage().data());
  return std::all_of(bytes, bytes + tensor.storage().nbytes(), [](char byte) { return byte == 0; });
}

// Throws if the CPU kernel may not be tried.
void check_trial(const Call& call, const ModeState& mode) {
  if (!mode.options.allow_fallback_kernels) {
    refuse(call, "the mode has allow_fallback_kernels=False");
  }
  if (mode.options.exclusive && is_of_program(call.traits)) {
    refuse(call, "a FakeTensorMode tries only kernels of PyTorch's own operators on zeros");
  }
  if (!call.op.hasKernelForDispatchKey(c10::DispatchKey::CPU)) {
    refuse(call, "it has no CPU kernel to try on zeros");
  }
  if (bytes_of(call) > kMaxBytes) {
    refuse(call, "its inputs are too large to try its CPU kernel on zeros");
  }
  refuse_values(call);
}

// The input fake, the view of one, or the plain meta tensor in place of a result of the CPU kernel.
at::Tensor result_for(const Call& call, const Zeros& zeros, const at::Tensor& real, bool is_alias) {
  if (!real.defined()) {
    return real;
  }
  if (std::optional<at::Tensor> fake = zeros.fake_of(real)) {
    return *fake;
  }
  if (std::optional<at::Tensor> base = zeros.base_of(real)) {
    if (!is_alias || base->scalar_type() != real.scalar_type()) {
      refuse_undeclared(call, "returns a view of an argument");
    }
    return base->as_strided(real.sizes(), real.strides(), real.storage_offset());
  }
  if (real.layout() != c10::kStrided || real.is_nested()) {
    raise(
        ErrorKind::kUnsupportedFakeTensor,
        call.op_name(),
        real.is_nested() ? "the result is nested; such a tensor cannot be fake."
                         : c10::str("the result has layout ", real.layout(), "; such a tensor cannot be fake."));
  }
  return at::detail::empty_strided_meta(real.sizes(), real.strides(), real.scalar_type());
}

}  // namespace

void zeros_call(Call& call, c10::Device /*device*/, const ModeState& mode) {
  trial_call(call, mode, /*fill=*/0);
}

void trial_call(Call& call, const ModeState& mode, int fill) {
  check_trial(call, mode);
  Zeros zeros(fill);
  torch::jit::Stack real;
  for (size_t i = 0; i < call.num_args(); ++i) {
    if (call.traits.args[i].kind == ArgKind::kDevice) {
      real.emplace_back(c10::Device(c10::kCPU));
    } else {
      real.push_back(map_tensors(call.arg(i), [&](const at::Tensor& tensor) { return zeros.of(tensor); }));
    }
  }
  {
    PlainCpu plain;
    KernelEnvironment::note_all();
    call.op.callBoxed(&real);
  }
  for (const TensorArg& tensor : call.tensors()) {
    if (tensor.fake == nullptr) {
      continue;
    }
    const at::Tensor out(c10::intrusive_ptr<c10::TensorImpl>::unsafe_reclaim_from_nonowning(tensor.impl));
    if (tensor.is_written) {
      lay_out_as(out, zeros.of(out));
    } else if (!call.traits.is_builtin && !are_zeros(zeros.of(out))) {
      refuse_undeclared(call, "writes to " + call.describe(tensor));
    }
  }
  torch::jit::drop(*call.stack, call.num_args());
  for (size_t i = 0; i < real.size(); ++i) {
    const bool is_alias = call.op.schema().returns()[i].alias_info() != nullptr;
    call.stack->push_back(
        map_tensors(real[i], [&](const at::Tensor& tensor) { return result_for(call, zeros, tensor, is_alias); }));
  }
}

}  // namespace torchfake
