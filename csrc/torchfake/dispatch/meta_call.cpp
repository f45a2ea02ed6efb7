// Kernel: runs the operator on metadata only.
#include <torchfake/dispatch/meta_call.h>

#include <ATen/EmptyTensor.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/autocast_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <torchfake/core/call_context.h>
#include <torchfake/core/compat.h>
#include <torchfake/core/errors.h>
#include <torchfake/core/kernel_environment.h>
#include <torchfake/core/kernel_failures.h>
#include <torchfake/core/pytorch_errors.h>
#include <torchfake/core/scoped.h>
#include <torchfake/dispatch/refusals.h>
#include <torchfake/values/known_values.h>

#include <atomic>

namespace torchfake {

namespace {

// Keys hidden from operators that a meta kernel calls: their layers have already run above the engine.
const c10::DispatchKeySet kAboveKernels = c10::autograd_dispatch_keyset | c10::autocast_dispatch_keyset |
    c10::DispatchKeySet(c10::DispatchKey::Python) | c10::DispatchKeySet(c10::DispatchKey::PythonTLSSnapshot);

// Backends with a functionality key of their own, which would take precedence over Meta.
const c10::DispatchKeySet kOtherBackends = c10::DispatchKeySet(c10::DispatchKey::FPGA) |
    c10::DispatchKeySet(c10::DispatchKey::Vulkan) | c10::DispatchKeySet(c10::DispatchKey::Metal) |
    c10::DispatchKeySet(c10::DispatchKey::MkldnnCPU);

// Note [Two guards for a kernel]
// A redispatch with a key set ignores the thread's keys, and operators called by the kernel ignore that key set, so
// both must be set. Meta is added to the thread's included keys by replacing the whole local key set, because an
// include guard would leave the Meta backend bit behind on exit. Fake is included too: operators that a kernel calls
// return to the engine (nested_call), which has more accurate kernels than those on the Meta key, and creates their
// tensors on meta. A C++ kernel that writes through other operators (foreach) increments version counters, as it does
// for real tensors; writes inside Python kernels are internal and do not.
c10::impl::LocalDispatchKeySet kernel_keys(bool counts_versions) {
  c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
  keys.included_ =
      keys.included_ | c10::DispatchKeySet(c10::DispatchKey::Meta) | c10::DispatchKeySet(c10::DispatchKey::Fake);
  keys.excluded_ = keys.excluded_ | kAboveKernels | kOtherBackends;
  if (!counts_versions) {
    keys.excluded_ = keys.excluded_.add(c10::DispatchKey::ADInplaceOrView);
  }
  return keys;
}

c10::impl::LocalDispatchKeySet real_keys() {
  c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
  keys.included_ = keys.included_.remove(c10::DispatchKey::Fake);
  keys.excluded_ = keys.excluded_.add(c10::DispatchKey::Fake);
  return keys;
}

// `with torch.device("cuda")` is a torch function mode: torch.empty called from a Python meta kernel must not see it.
class NoTorchFunction {
 public:
  NoTorchFunction() : before_(at::impl::PythonTorchFunctionTLS::get_disabled_state()) {
    at::impl::PythonTorchFunctionTLS::set_disabled_state(at::impl::TorchFunctionDisabledState::ALL_DISABLED);
  }
  ~NoTorchFunction() {
    at::impl::PythonTorchFunctionTLS::set_disabled_state(before_);
  }
  NoTorchFunction(const NoTorchFunction&) = delete;
  NoTorchFunction& operator=(const NoTorchFunction&) = delete;
  NoTorchFunction(NoTorchFunction&&) = delete;
  NoTorchFunction& operator=(NoTorchFunction&&) = delete;

 private:
  at::impl::TorchFunctionDisabledState before_;
};

// A factory kernel creates its tensors on meta, in memory that is not pinned.
void request_meta_device(Call& call) {
  for (size_t i = 0; i < call.num_args(); ++i) {
    const ArgKind kind = call.traits.args[i].kind;
    if (kind == ArgKind::kDevice && (!call.arg(i).isNone() || !call.has_fake())) {
      call.arg(i) = c10::Device(c10::kMeta);
    } else if (kind == ArgKind::kPinMemory) {
      call.arg(i) = c10::IValue();
    }
  }
}

// Python scalars arrive as real CPU tensors. C++ kernels compare devices, so they get them on meta; all they read is
// the dtype and whether the tensor is a wrapped number.
void numbers_to_meta(Call& call) {
  if (!call.has_non_fake()) {
    return;
  }
  for (const TensorArg& tensor : call.tensors()) {
    if (tensor.fake == nullptr && tensor.impl->is_wrapped_number()) {
      at::Tensor number = at::detail::empty_meta({}, c10::typeMetaToScalarType(tensor.impl->dtype()));
      number.unsafeGetTensorImpl()->set_wrapped_number(true);
      call.replace(tensor, number);
    }
  }
}

// The key of the composite kernel for the call, if there is one. All backends run it, which makes it the most accurate
// choice. Prims are reversed: a prim's composite calls the operator that the prim represents.
std::optional<c10::DispatchKey> composite_key(const Call& call) {
  return call.traits.kernel != nullptr || !call.traits.is_aten ? std::nullopt : find_composite_key(call.op);
}

// Note [Autocast inside composites]
// Autocast is above the engine and has already handled the call. But a composite that autocast does not cast may call
// operators that it does (pinv calls matmul), and those are cast individually. Inside a kernel this is impossible:
// autocast needs a device, and fakes report `meta`. When such a composite reaches such an operator, it is restarted
// outside the kernel.
struct CastsInside {};

// The device type for which autocast would cast operators called by this composite.
std::optional<c10::DeviceType> autocast_type(const Call& call, c10::Device device) {
  return composite_key(call) && KernelEnvironment::autocast_enabled(device.type()) ? std::optional(device.type())
                                                                                   : std::nullopt;
}

void stop_if_cast(const Call& call) {
  const CallContext& context = *CallContext::current();
  if (C10_UNLIKELY(context.may_cast.has_value()) && !context.in_python_kernel &&
      call.op.hasKernelForDispatchKey(at::autocast::get_autocast_dispatch_key_from_device_type(*context.may_cast))) {
    throw CastsInside();  // NOLINT(bugprone-std-exception-baseclass): caught only by meta_call
  }
}

bool has_kernel_on_meta(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::Meta) || find_composite_key(op).has_value() ||
      op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
}

// The kernel may be a Python one, which can read any setting. PyTorch's own kernels also check arguments with
// assertions; a user-defined operator fails with its author's error.
void call_on_meta_key(Call& call) {
  Scoped passes_python(CallContext::current()->passes_python, true);
  KernelEnvironment::note_all();
  try {
    call.op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), call.stack);
  } catch (const c10::Error&) {
    throw;
  } catch (const std::exception& error) {
    if (call.traits.is_builtin) {
      refuse_kernel_failure(call.op_name(), error);
    }
    throw;
  }
}

// Whether a composite failed only because fakes have no values. Any other error is one that the real operator raises
// too, and that the Python kernel might not raise.
bool is_caused_by_missing_values(const c10::Error& error) {
  if (dynamic_cast<const FakeTensorError*>(&error) != nullptr) {
    return true;
  }
  if (dynamic_cast<const c10::NotImplementedError*>(&error) != nullptr) {
    return !refuses_dtype(error) && !says(error, kOtherDevicesOnly);
  }
  return is_data_access(error);
}

// Some composites read values (linspace between tensors) where the kernel on the Meta key does not.
void call_composite(Call& call, c10::DispatchKey key) {
  if (!call.op.hasKernelForDispatchKey(c10::DispatchKey::Meta)) {
    return call.op.callBoxedForDispatchKey(key, *call.stack);
  }
  const size_t below = call.stack->size() - call.num_args();
  const std::vector<c10::IValue> arguments(call.stack->begin() + static_cast<ptrdiff_t>(below), call.stack->end());
  const auto start_again = [&] {
    call.stack->resize(below);
    call.stack->insert(call.stack->end(), arguments.begin(), arguments.end());
    Scoped kind(CallContext::current()->in_python_kernel, true);
    Scoped composite(CallContext::current()->in_composite, false);
    call_on_meta_key(call);
  };
  try {
    return call.op.callBoxedForDispatchKey(key, *call.stack);
  } catch (const c10::Error& error) {
    if (!is_caused_by_missing_values(error)) {
      throw;
    }
  }
  start_again();
}

void run_kernel(Call& call) {
  bool& in_composite = CallContext::current()->in_composite;
  Scoped composite(in_composite, in_composite && composite_key(call).has_value());
  if (call.traits.kernel != nullptr) {
    numbers_to_meta(call);
    call.traits.kernel->callBoxed(call.op, c10::DispatchKeySet(c10::DispatchKey::Meta), call.stack);
  } else if (const std::optional<c10::DispatchKey> key = composite_key(call)) {
    numbers_to_meta(call);
    Scoped kind(CallContext::current()->in_python_kernel, false);
    if (!call.traits.is_view && !call.traits.reads_no_settings) {
      KernelEnvironment::note_all();
    }
    call_composite(call, *key);
  } else {
    Scoped kind(CallContext::current()->in_python_kernel, true);
    call_on_meta_key(call);
  }
}

// See compat.h, Note [Views ask for a device].
class LentDevices {
 public:
  explicit LentDevices(const Call& call) {
    for (const TensorArg& tensor : call.tensors()) {
      lent_.emplace_back(
          c10::intrusive_ptr<c10::TensorImpl>::unsafe_reclaim_from_nonowning(tensor.impl),
          compat::lend_device(tensor.impl));
    }
  }
  ~LentDevices() {
    for (const auto& [impl, type] : lent_) {
      compat::give_back_device(impl.get(), type);
    }
  }
  LentDevices(const LentDevices&) = delete;
  LentDevices& operator=(const LentDevices&) = delete;
  LentDevices(LentDevices&&) = delete;
  LentDevices& operator=(LentDevices&&) = delete;

  // Restores the device of a kernel's output. Kernels that return several views create each with a separate operator.
  void settle(const c10::IValue& output) const {
    if (output.isTensor() && output.toTensor().defined() && !lent_.empty()) {
      compat::give_back_device(output.toTensor().unsafeGetTensorImpl(), lent_.front().second);
    }
  }

 private:
  c10::SmallVector<std::pair<c10::intrusive_ptr<c10::TensorImpl>, c10::DeviceType>, 2> lent_;
};

template <typename Kernel>
void lending_devices(Call& call, const Kernel& kernel) {
  if (!compat::kViewsAskForDevice || !call.traits.is_view) {
    return kernel();
  }
  const LentDevices lent(call);
  kernel();
  for (const c10::IValue& output : outputs_of(call)) {
    lent.settle(output);
  }
}

// item() of an argument with a known value: linspace(0, h, h) between tensors.
bool answer_with_known_value(const Call& call) {
  const FakeTensorImpl* fake = call.tensors().size() == 1 ? call.tensors().front().fake : nullptr;
  if (!call.traits.returns_item || fake == nullptr) {
    return false;
  }
  const std::optional<c10::Scalar> value = known_item(*fake);
  if (value) {
    torch::jit::drop(*call.stack, call.num_args());
    call.stack->emplace_back(*value);
  }
  return value.has_value();
}

}  // namespace

std::optional<c10::DispatchKey> find_composite_key(const c10::OperatorHandle& op) {
  for (const c10::DispatchKey key :
       {c10::DispatchKey::CompositeExplicitAutograd, c10::DispatchKey::CompositeExplicitAutogradNonFunctional}) {
    if (op.hasKernelForDispatchKey(key)) {
      return key;
    }
  }
  return std::nullopt;
}

bool must_decompose(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
      !op.hasKernelForDispatchKey(c10::DispatchKey::Meta);
}

bool has_meta_kernel(const Call& call) {
  return call.traits.kernel != nullptr || has_kernel_on_meta(call.op);
}

namespace {

void call_in_kernel(Call& call, c10::Device device) {
  request_meta_device(call);
  CallContext& context = *CallContext::current();
  InKernel in_kernel;
  Scoped claimed(context.claimed_device, device);
  const ModePtr* mode = call.find_mode();
  Scoped capability(
      context.cuda_capability,
      mode == nullptr || !*mode ? context.cuda_capability : KernelEnvironment::cuda_capability(**mode));
  Scoped composite(context.in_composite, true);  // reset by run_kernel for other kernels
  c10::impl::ForceDispatchKeyGuard keys(
      kernel_keys(/*counts_versions=*/call.traits.kernel != nullptr || composite_key(call)));
  NoTorchFunction no_torch_function;
  try {
    lending_devices(call, [&] { run_kernel(call); });
  } catch (const c10::Error& error) {
    if (!is_data_access(error)) {
      throw;
    }
    raise(
        ErrorKind::kDataDependentOutput,
        call.op_name(),
        "the kernel reads values of an argument, which fakes do not have. Values are known only if they are derived "
        "from small constants; keep this operator out of the fake run.");
  }
}

}  // namespace

KernelScope::KernelScope() : keys_(kernel_keys(/*counts_versions=*/false)) {
  context_.passes_python = true;
}

void meta_call(Call& call, c10::Device device) {
  const std::optional<c10::DeviceType> type = autocast_type(call, device);
  CallContext& context = *CallContext::current();
  Scoped may_cast(context.may_cast, type);
  if (C10_LIKELY(!type)) {
    return call_in_kernel(call, device);
  }
  const size_t below = call.stack->size() - call.num_args();
  std::vector<c10::IValue> arguments(call.stack->begin() + static_cast<ptrdiff_t>(below), call.stack->end());
  for (c10::IValue& argument : arguments) {
    if (argument.isList()) {
      argument = argument.toList().copy();  // some composites modify their list arguments
    }
  }
  try {
    call_in_kernel(call, device);
  } catch (const CastsInside&) {
    context.is_unkeyed = true;  // the key does not cover what autocast does inside
    KernelEnvironment::note_all();
    call.stack->resize(below);
    call.stack->insert(call.stack->end(), arguments.begin(), arguments.end());
    call.op.callBoxedForDispatchKey(*composite_key(call), *call.stack);
  }
}

namespace {

std::atomic<FakeImplFinder> g_fake_impl_finder{nullptr};

}  // namespace

void set_fake_impl_finder(FakeImplFinder finder) {
  g_fake_impl_finder.store(finder, std::memory_order_release);
}

bool has_fake_impl(const Call& call) {
  if (call.traits.is_builtin) {
    return false;
  }
  const FakeImplFinder finder = g_fake_impl_finder.load(std::memory_order_acquire);
  return finder != nullptr && finder(call.op);
}

namespace {

// The keys for a kernel that is run outside of any kernel.
c10::impl::LocalDispatchKeySet outside_kernels() {
  c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
  // When a TorchDispatchMode redispatches the call, these two are excluded; together with Python's keys, that would be
  // mistaken for no_dispatch() (is_kept_out).
  keys.excluded_ = (keys.excluded_ | kAboveKernels) - c10::DispatchKeySet(c10::DispatchKey::PreDispatch) -
      c10::DispatchKeySet(c10::DispatchKey::Functionalize);
  return keys;
}

}  // namespace

void fake_impl_call(Call& call, const ModePtr& mode) {
  const FakeMode in_mode(mode);
  const c10::impl::ForceDispatchKeyGuard guard(outside_kernels());
  call_on_meta_key(call);
}

void composite_call(Call& call, c10::DispatchKey key, const ModePtr& mode) {
  const FakeMode in_mode(mode);
  const c10::impl::ForceDispatchKeyGuard guard(outside_kernels());
  call.op.callBoxedForDispatchKey(key, *call.stack);
}

void nested_call(Call& call) {
  if (call.traits.lift != Lift::kNo) {
    return;  // the operator returns its argument
  }
  stop_if_cast(call);
  if (CallContext::current()->in_composite) {
    check_kernels(call, CallContext::current()->claimed_device);
  }
  if (call.traits.data_dependent) {
    CallContext::current()->is_unkeyed = true;
    if (answer_with_known_value(call)) {
      return;
    }
    raise(
        ErrorKind::kDataDependentOutput,
        call.op_name(),
        "a kernel read a value, which fakes do not have. Keep this operator out of the fake run.");
  }
  if (call.traits.shape_is_data) {
    raise(
        ErrorKind::kDynamicOutputShape,
        call.op_name(),
        "the shape of the result depends on values, which fakes do not have. Keep this operator out of the fake run.");
  }
  if (!has_meta_kernel(call)) {
    raise(
        ErrorKind::kUnsupportedOperator,
        call.op_name(),
        "a kernel calls this operator, which has neither a meta kernel nor a decomposition.");
  }
  if (call.traits.is_composite && must_decompose(call.op)) {
    return call.op.callBoxedForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd, *call.stack);
  }
  request_meta_device(call);
  if (call.traits.kernel == nullptr && CallContext::current()->in_python_kernel) {
    // Not the composite, which may itself have called this Python kernel.
    Scoped composite(CallContext::current()->in_composite, false);
    lending_devices(call, [&] { call_on_meta_key(call); });
  } else {
    lending_devices(call, [&] { run_kernel(call); });
  }
}

void real_call(Call& call) {
  c10::impl::ForceDispatchKeyGuard keys(real_keys());
  call.op.redispatchBoxed(call.keys.remove(c10::DispatchKey::Fake), call.stack);
}

}  // namespace torchfake
