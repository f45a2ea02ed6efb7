// Calls on fakes of layouts other than strided.
#include <torchfake/dispatch/layout_call.h>

#include <ATen/ops/_sparse_compressed_tensor_unsafe.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <torchfake/core/errors.h>
#include <torchfake/core/layout_fake.h>
#include <torchfake/core/plain_cpu.h>
#include <torchfake/core/to_fake.h>
#include <torchfake/dispatch/admission.h>
#include <torchfake/dispatch/meta_call.h>
#include <torchfake/dispatch/refusals.h>
#include <torchfake/dispatch/stored_counts.h>

#include <atomic>

namespace torchfake {

namespace {

std::atomic<LayoutFactsFinder> g_finder{nullptr};

std::optional<c10::Device> claimed_by(const TensorArg& tensor) {
  if (tensor.fake != nullptr) {
    return tensor.fake->claimed_device();
  }
  const LayoutFake* fake = as_layout_fake(tensor.impl);
  return fake == nullptr ? std::nullopt : std::optional(fake->claimed_device());
}

c10::Device device_of(const TensorArg& fake) {
  return claimed_by(fake).value_or(c10::Device(c10::kCPU));
}

bool is_scalar_of_cpu(const TensorArg& tensor) {
  const std::optional<c10::Device> device = claimed_by(tensor);
  return tensor.impl->dim() == 0 && device.has_value() && device->is_cpu();
}

[[noreturn]] void refuse_devices(const Call& call, const TensorArg& first, const TensorArg& second) {
  raise(
      ErrorKind::kDeviceMismatch,
      call.op_name(),
      c10::str(
          "Expected all tensors to be on the same device, but found two different devices ",
          device_of(first),
          ", ",
          device_of(second),
          ": ",
          call.describe(first),
          " and ",
          call.describe(second),
          "; move one of them with .to()."));
}

bool has_quantized_fake(const Call& call) {
  return std::any_of(call.tensors().begin(), call.tensors().end(), [](const TensorArg& tensor) {
    return tensor.fake == nullptr && as_quantized_fake(tensor.impl) != nullptr;
  });
}

std::optional<c10::Layout> layout_argument(const Call& call) {
  for (size_t i = 0; i < call.num_args(); ++i) {
    if (call.traits.args[i].kind == ArgKind::kLayout && call.arg(i).isInt()) {
      return call.arg(i).toLayout();
    }
  }
  return std::nullopt;
}

// Whether the flag of a backward operator requests a sparse gradient. Forward operators only pass it on.
bool requests_sparse_gradient(const Call& call) {
  const std::vector<c10::Argument>& arguments = call.op.schema().arguments();
  for (size_t i = 0; i < call.num_args(); ++i) {
    if (arguments[i].name() == "sparse" && call.arg(i).isBool() && call.arg(i).toBool()) {
      const LayoutFactsFinder finder = g_finder.load(std::memory_order_acquire);
      return finder != nullptr && finder(call.op) != nullptr;
    }
  }
  return false;
}

// The key of the real operator's CPU kernel.
c10::DispatchKey kernel_key(const Call& call) {
  bool sparse = false;
  bool compressed = false;
  for (const TensorArg& tensor : call.tensors()) {
    const c10::Layout layout = tensor.impl->layout();
    sparse |= layout == c10::kSparse;
    compressed |= layout != c10::kSparse && is_sparse_layout(layout);
  }
  if (!sparse && !compressed && call.tensors().empty()) {
    const c10::Layout layout = layout_argument(call).value_or(c10::kStrided);
    sparse = layout == c10::kSparse;
    compressed = !sparse && is_sparse_layout(layout);
  }
  return compressed ? c10::DispatchKey::SparseCsrCPU : sparse ? c10::DispatchKey::SparseCPU : c10::DispatchKey::CPU;
}

// Excludes the layers above the engine, which have already handled the call.
c10::impl::LocalDispatchKeySet keys_below() {
  c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
  keys.excluded_ =
      (keys.excluded_ | c10::autograd_dispatch_keyset | c10::autocast_dispatch_keyset |
       c10::DispatchKeySet(c10::DispatchKey::Python) | c10::DispatchKeySet(c10::DispatchKey::PythonTLSSnapshot)) -
      c10::DispatchKeySet(c10::DispatchKey::PreDispatch) - c10::DispatchKeySet(c10::DispatchKey::Functionalize);
  return keys;
}

}  // namespace

void set_layout_facts_finder(LayoutFactsFinder finder) {
  g_finder.store(finder, std::memory_order_release);
}

bool has_layout_fake(const Call& call) {
  return std::any_of(call.tensors().begin(), call.tensors().end(), [](const TensorArg& tensor) {
    return tensor.fake == nullptr && as_layout_fake(tensor.impl) != nullptr;
  });
}

bool requests_sparse_layout(const Call& call) {
  return is_sparse_layout(layout_argument(call).value_or(c10::kStrided)) || requests_sparse_gradient(call);
}

c10::Device common_device(const Call& call, const ModeState& mode) {
  if (std::optional<c10::Device> asked = call.device_arg()) {
    return normalize_device(*asked);
  }
  const TensorArg* common = nullptr;
  for (const TensorArg& tensor : call.tensors()) {
    if (!claimed_by(tensor)) {
      continue;
    }
    if (common == nullptr || (is_scalar_of_cpu(*common) && !common->is_written)) {
      common = &tensor;
    } else if (claimed_by(tensor) != claimed_by(*common) && !is_scalar_of_cpu(tensor)) {
      if (call.traits.devices == DevicePolicy::kFirst) {
        continue;
      }
      refuse_devices(call, *common, tensor);
    }
  }
  return common == nullptr ? c10::Device(c10::kCPU) : device_of(*common);
}

at::Tensor wrap_sparse(const at::Tensor& sparse, c10::Device device, const ModePtr& mode) {
  std::vector<at::Tensor> members;
  for (const at::Tensor& member : members_of(sparse)) {
    members.push_back(as_fake(member) != nullptr ? member : to_fake(member, mode, device));
  }
  return make_layout_fake(sparse, members, device, mode);
}

namespace {

// A plain meta tensor in place of a strided fake, with nothing along sizes that are symbols.
at::Tensor meta_without_elements(const at::Tensor& member) {
  c10::DimVector sizes;
  for (const c10::SymInt& size : member.sym_sizes()) {
    sizes.push_back(size.maybe_as_int().value_or(0));
  }
  PlainCpu no_engine;
  return at::empty(sizes, at::TensorOptions().dtype(member.scalar_type()).device(c10::kMeta));
}

}  // namespace

at::Tensor plain_meta(const at::Tensor& fake, bool may_lack_elements) {
  if (as_fake(fake) != nullptr) {
    return to_meta(fake);
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      as_quantized_fake(fake) == nullptr, "a quantized fake cannot be used where the mode is kept out");
  std::vector<at::Tensor> members;
  for (const at::Tensor& member : members_of(fake)) {
    if (may_lack_elements && fake.layout() == c10::kSparse && has_symbolic_count(fake)) {
      members.push_back(meta_without_elements(member));
    } else {
      members.push_back(as_fake(member) != nullptr ? to_meta(member) : member);
    }
  }
  PlainCpu no_engine;
  if (fake.layout() == c10::kSparse) {
    return at::_sparse_coo_tensor_unsafe(
        members[0],
        members[1],
        fake.sizes(),
        members[1].options().layout(c10::kSparse),
        static_cast<FakeSparseImpl*>(fake.unsafeGetTensorImpl())->coalesced());
  }
  return at::_sparse_compressed_tensor_unsafe(
      members[0], members[1], members[2], fake.sizes(), members[2].options().layout(fake.layout()));
}

void composed_call(Call& call, c10::Device device, const ModePtr& mode) {
  const c10::DispatchKeySet key(kernel_key(call));
  {
    const FakeMode in_mode(mode);
    const c10::impl::ForceDispatchKeyGuard below(keys_below());
    call.op.redispatchBoxed(key, call.stack);
  }
  const auto wrap = [&](const at::Tensor& output) {
    const bool is_plain = output.defined() && !is_any_fake(output) && is_sparse_layout(output.layout());
    return is_plain ? wrap_sparse(output, device, mode) : output;
  };
  for (size_t i = call.stack->size() - call.traits.num_returns; i < call.stack->size(); ++i) {
    c10::IValue& value = (*call.stack)[i];
    if (value.isTensor()) {
      value = wrap(value.toTensor());
    }
  }
}

void layout_call(Call& call, const ModePtr& of_argument) {
  // Copied: the argument that holds the mode may be destroyed during the call.
  const ModePtr mode = of_argument;  // NOLINT(performance-unnecessary-copy-initialization)
  if (call.has_non_fake()) {
    admit_real_tensors(call, mode);
  }
  if (call.traits.is_composite && must_decompose(call.op)) {
    return call.op.callBoxedForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd, *call.stack);
  }
  const LayoutFactsFinder finder = g_finder.load(std::memory_order_acquire);
  const LayoutFacts* facts = finder == nullptr ? nullptr : finder(call.op);
  if (facts == nullptr && call.traits.makes_other_layout) {
    refuse_layout(call);
  }
  CallContext context;
  context.is_unkeyed = true;
  const c10::Device device = common_device(call, *mode);
  const bool has_out =
      std::any_of(call.tensors().begin(), call.tensors().end(), [](const TensorArg& tensor) { return tensor.is_out; });
  const bool is_quantized = (facts != nullptr && facts->makes_quantized) || has_quantized_fake(call);
  const LayoutRule rule = facts == nullptr ? nullptr : is_quantized ? facts->quantized : facts->rule;
  if (rule != nullptr && !has_out && rule(call, device, mode)) {
    return;
  }
  if (facts != nullptr && facts->is_composed && !is_quantized) {
    return composed_call(call, device, mode);
  }
  stand_in_call(call, device, mode);
}

void layout_call_kept_out(Call& call) {
  for (size_t i = 0; i < call.tensors().size(); ++i) {
    const TensorArg tensor = call.tensors()[i];
    const at::Tensor given(c10::intrusive_ptr<c10::TensorImpl>::unsafe_reclaim_from_nonowning(tensor.impl));
    if (is_any_fake(given)) {
      call.replace(tensor, plain_meta(given));
    }
  }
  c10::impl::LocalDispatchKeySet keys = keys_below();
  keys.included_ = keys.included_.remove(c10::DispatchKey::Fake);
  keys.excluded_ = keys.excluded_.add(c10::DispatchKey::Fake);
  const c10::impl::ForceDispatchKeyGuard below(keys);
  call.op.callBoxed(call.stack);
}

}  // namespace torchfake
