// Devices absent from this machine: as much of them as autograd and the dispatcher need for tensors that claim one.
#include <torchfake/devices/absent_devices.h>

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/library.h>

#include <torchfake/core/activation.h>
#include <torchfake/core/errors.h>
#include <torchfake/core/op_traits.h>
#include <torchfake/values/known_values.h>
#include <torchfake/values/stand_in_answers.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <vector>

namespace torchfake {

namespace {

// PyTorch's error for a device type without a guard.
[[noreturn]] void refuse_device(c10::DeviceType type) {
  TORCH_CHECK(
      false, "PyTorch is not linked with support for ", c10::DeviceTypeName(type, /*lower_case=*/true), " devices");
}

// The guard of a device type that fakes claim. It keeps a current device and current streams per thread; work on these
// streams completes immediately. If the device is present, real tensors use its own guard: outside the mode, for an
// existing index. See Note [Absent devices].
class ClaimedGuard final : public c10::impl::DeviceGuardImplInterface {
 public:
  ClaimedGuard(c10::DeviceType type, const DeviceGuardImplInterface* real) : type_(type), real_(real) {}

  bool has_real() const noexcept {
    return real_ != nullptr;
  }

  c10::DeviceType type() const override {
    return type_;
  }
  c10::Device exchangeDevice(c10::Device device) const override {
    if (is_real(device) || is_mistaken(device)) {
      return real_->exchangeDevice(device);
    }
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override {
    return is_real(c10::Device(type_)) ? real_->getDevice() : c10::Device(type_, current());
  }
  void setDevice(c10::Device device) const override {
    if (is_real(device) || is_mistaken(device)) {
      real_->setDevice(device);
    } else if (device.has_index()) {
      current() = device.index();
    }
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (is_real(device)) {
      real_->uncheckedSetDevice(device);
    } else if (device.has_index()) {
      current() = device.index();
    }
  }
  c10::Stream getStream(c10::Device device) const override {
    return is_real(device) ? real_->getStream(device) : current_stream(device);
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return is_real(device) ? real_->getDefaultStream(device) : default_stream(device);
  }
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    if (is_real(device)) {
      return real_->getNewStream(device, priority);
    }
    require_claim();
    return new_stream(device);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool is_high_priority) const override {
    if (is_real(device)) {
      return real_->getStreamFromGlobalPool(device, is_high_priority);
    }
    require_claim();
    return new_stream(device);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    if (is_real(stream.device())) {
      return real_->exchangeStream(stream);
    }
    const c10::Stream before = current_stream(stream.device());
    stream_of(stream.device()) = stream.id();
    return before;
  }
  // In the mode, the number of claimed devices: autograd keeps a stream per device, looked up by index.
  c10::DeviceIndex deviceCount() const noexcept override {
    if (in_fake_mode() || InKernel::active()) {
      const ModePtr* mode = find_current_mode();
      const int64_t cards = mode != nullptr && *mode ? (*mode)->options.cards.get() : 0;
      return std::max(claimed_device_count(), static_cast<c10::DeviceIndex>(cards));
    }
    return real_ == nullptr ? 0 : real_->deviceCount();
  }

  // Nothing runs on a claimed device, so there is nothing to wait for.
  void destroyEvent(void* event, c10::DeviceIndex device) const noexcept override {
    if (event != &no_event) {
      real_->destroyEvent(event, device);
    }
  }
  void record(void** event, const c10::Stream& stream, c10::DeviceIndex device, c10::EventFlag flag) const override {
    if (is_real(stream.device())) {
      real_->record(event, stream, device, flag);
    } else {
      *event = &no_event;
    }
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (is_real(stream.device()) && event != &no_event) {
      real_->block(event, stream);
    }
  }
  bool queryEvent(void* event) const override {
    return event == &no_event || real_ == nullptr || real_->queryEvent(event);
  }
  bool queryStream(const c10::Stream& stream) const override {
    return !is_real(stream.device()) || real_->queryStream(stream);
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    if (is_real(stream.device())) {
      real_->synchronizeStream(stream);
    }
  }
  void synchronizeEvent(void* event) const override {
    if (event != &no_event && real_ != nullptr) {
      real_->synchronizeEvent(event);
    }
  }
  void synchronizeDevice(c10::DeviceIndex device) const override {
    if (is_real(c10::Device(type_, device))) {
      real_->synchronizeDevice(device);
    }
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    if (is_real(stream.device())) {
      real_->recordDataPtrOnStream(data, stream);
    }
  }
  double elapsedTime(void* start, void* end, c10::DeviceIndex device) const override {
    if (real_ != nullptr && start != &no_event && end != &no_event) {
      return real_->elapsedTime(start, end, device);
    }
    at_the_boundary([] {
      const ModePtr* mode = find_current_mode();
      if (mode == nullptr || !*mode || !stands_in(*mode, "elapsed_time", "1.0")) {
        raise(
            ErrorKind::kDataAccess,
            "elapsed_time",
            "nothing runs on a claimed device, so there is no elapsed time. Measure it on a real one, or keep this "
            "part "
            "out of the fake run.");
      }
    });
    return 1.0;
  }

 private:
  // Real operators, including those called in the mode, run with the engine excluded.
  bool is_real(c10::Device device) const noexcept {
    return real_ != nullptr && !in_fake_mode() && !InKernel::active() && device.index() < real_->deviceCount();
  }
  // A real operator requests a device that does not exist: the real guard reports it. Outside the mode, fakes query the
  // guard only during a backward pass.
  bool is_mistaken(c10::Device device) const {
    return real_ != nullptr && !in_fake_mode() && !InKernel::active() && device.index() >= real_->deviceCount() &&
        torch::autograd::get_current_graph_task_id() < 0;
  }
  // Outside the mode, fakes never request new streams: throws what PyTorch throws without a guard.
  void require_claim() const {
    if (real_ == nullptr && !in_fake_mode() && !InKernel::active()) {
      refuse_device(type_);
    }
  }
  static c10::Stream default_stream(c10::Device device) {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  // A stream of a claimed device is just a number, whose work completes immediately. It selects the allocator's pool
  // that the thread allocates from.
  static c10::Stream new_stream(c10::Device device) {
    static std::atomic<c10::StreamId> count{0};
    return c10::Stream(c10::Stream::UNSAFE, device, ++count);
  }
  c10::Stream current_stream(c10::Device device) const {
    const std::vector<c10::StreamId>& streams = streams_of_thread();
    const size_t place = place_of(device);
    return c10::Stream(c10::Stream::UNSAFE, device, place < streams.size() ? streams[place] : 0);
  }
  c10::StreamId& stream_of(c10::Device device) const {
    std::vector<c10::StreamId>& streams = streams_of_thread();
    const size_t place = place_of(device);
    if (place >= streams.size()) {
      streams.resize(place + 1);
    }
    return streams[place];
  }
  // Indexed by type and index; empty on a thread that has set no current stream. Not an array: thread-local space is
  // scarce.
  static std::vector<c10::StreamId>& streams_of_thread() {
    static thread_local std::vector<c10::StreamId> streams;
    return streams;
  }
  size_t place_of(c10::Device device) const {
    const c10::DeviceIndex index = device.has_index() ? device.index() : current();
    return static_cast<size_t>(type_) * (size_t{1} << (8 * sizeof(c10::DeviceIndex))) + static_cast<uint8_t>(index);
  }
  c10::DeviceIndex& current() const {
    static thread_local std::array<c10::DeviceIndex, c10::COMPILE_TIME_MAX_DEVICE_TYPES> current{};
    return current[static_cast<size_t>(type_)];
  }

  static inline char no_event = 0;

  const c10::DeviceType type_;
  const DeviceGuardImplInterface* const real_;
};

constexpr auto kDeviceTypes = static_cast<size_t>(c10::COMPILE_TIME_MAX_DEVICE_TYPES);
using GuardSlots = std::array<const c10::impl::DeviceGuardImplInterface*, kDeviceTypes>;

std::atomic<AbsentDeviceHook> g_hook{nullptr};

// torch.tensor([x, 2]) reads the numbers among its elements with the engine disabled; a fake may be one of them.
c10::Scalar read_fake_number(const FakeTensorImpl* fake) {
  return at_the_boundary([&]() -> c10::Scalar {
    if (const std::optional<c10::Scalar> value = fake == nullptr ? std::nullopt : known_item(*fake)) {
      return *value;
    }
    if (fake != nullptr) {
      if (const std::optional<c10::Scalar> value = number_in_place(fake->mode(), "item", *fake)) {
        return *value;
      }
    }
    raise(
        ErrorKind::kDataDependentOutput,
        "aten::_local_scalar_dense",
        "the result is a value, which this fake tensor does not have. torch.stack combines fakes without reading "
        "them, "
        "where torch.tensor([...]) reads them.");
  });
}

// The fallback kernel of an absent backend, reached by real operators.
void refuse_real_call(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (OpTraits::of(op).returns_item) {
    const at::Tensor number = torch::jit::pop(*stack).toTensor();
    stack->emplace_back(read_fake_number(as_fake(number)));
    return;
  }
  const c10::DispatchKey key =
      c10::toRuntimePerBackendFunctionalityKey(c10::DispatchKey::Dense, keys.highestBackendKey());
  const c10::DeviceType type = c10::dispatchKeyToDeviceType(key);
  if (AbsentDeviceHook hook = g_hook.load(std::memory_order_acquire)) {
    hook(type);
  }
  refuse_device(type);
}

// Whether a PyTorch built with CUDA (or ROCm) finds a GPU here. Checks the device files instead of calling the driver:
// a process that has initialised the driver can no longer fork workers that use it.
bool look_for_gpu() {
  for (const char* variable : {"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"}) {
    const char* visible = std::getenv(variable);
    if (visible != nullptr && (std::string_view(visible).empty() || std::string_view(visible) == "-1")) {
      return false;
    }
  }
  for (const char* file : {"/dev/nvidiactl", "/dev/nvidia0", "/dev/nvhost-gpu", "/dev/nvgpu", "/dev/dxg", "/dev/kfd"}) {
    std::error_code error;
    if (std::filesystem::exists(file, error)) {
      return true;
    }
  }
  return false;
}

// Decided once, as in PyTorch.
bool gpu_is_missing() {
  static const bool missing = !look_for_gpu();
  return missing;
}

// The previous entries of the guard registry, and ours. Modified only under the lock of Note [Activation].
GuardSlots& guards_before() {
  static GuardSlots before{};
  return before;
}
GuardSlots& guards_of_ours() {
  static GuardSlots ours{};
  return ours;
}

std::atomic<const c10::impl::DeviceGuardImplInterface*>& slot_of(c10::DeviceType type) {
  return c10::impl::device_guard_impl_registry[static_cast<size_t>(type)];
}

// Note [Absent devices]
// PyTorch expects the following of a device before a fake can claim it. It is installed for each device that PyTorch
// was built without and, for CUDA, if there is no GPU:
// - autograd asks the device's guard for a stream whenever it records an operator: ClaimedGuard. A backend loaded later
//   overwrites it. CUDA always gets one: a machine with one GPU may claim `cuda:7`. Programs check whether a guard is
//   registered (torch.Event), so it is registered only while fakes exist.
// - Python initialises a device before an operator runs; the bindings disable that while fakes exist. So that a real
//   `x.cuda()` still fails as before, a fallback on the backend's key calls the hook, which raises the error of the
//   initialisation. Backends that Python does not initialise keep the dispatcher's own error.
// - an operator with a CUDA kernel and a decomposition for all other devices would be decomposed above the engine if
//   PyTorch has no CUDA kernels. A kernel is registered for these few operators; no real tensor can reach it.
// Nothing else is changed here: in a mode, torch.cuda is replaced in Python (python/torchfake/_virtual_cards.py).
void fill_guard_slots() {
  for (size_t i = 0; i < kDeviceTypes; ++i) {
    const auto type = static_cast<c10::DeviceType>(i);
    const bool absent = is_absent(type);
    if (!absent && type != c10::kCUDA) {
      continue;
    }
    const c10::impl::DeviceGuardImplInterface* before = slot_of(type).load();
    const c10::impl::DeviceGuardImplInterface*& ours = guards_of_ours()[i];
    // Never destroyed: streams and events refer to the guard that created them.
    if (ours == nullptr || before != guards_before()[i]) {
      ours = new ClaimedGuard(type, absent ? nullptr : before);
    }
    guards_before()[i] = before;
    slot_of(type).store(ours);
  }
}

void restore_guard_slots() {
  for (size_t i = 0; i < kDeviceTypes; ++i) {
    const c10::impl::DeviceGuardImplInterface* ours = guards_of_ours()[i];
    if (ours != nullptr) {
      // Unless a backend loaded in the meantime has overwritten it.
      slot_of(static_cast<c10::DeviceType>(i)).compare_exchange_strong(ours, guards_before()[i]);
    }
  }
}

std::vector<torch::Library>& libraries() {
  static auto* libraries = new std::vector<torch::Library>();
  return *libraries;
}

void install_kernels() {
  const bool has_hook = g_hook.load(std::memory_order_acquire) != nullptr;
  for (const c10::DispatchKey key :
       {c10::DispatchKey::CUDA,
        c10::DispatchKey::XPU,
        c10::DispatchKey::HPU,
        c10::DispatchKey::MTIA,
        c10::DispatchKey::MPS,
        c10::DispatchKey::IPU,
        c10::DispatchKey::VE,
        c10::DispatchKey::MAIA}) {
    const c10::DeviceType type = c10::dispatchKeyToDeviceType(key);
    if (!is_absent(type)) {
      continue;
    }
    if (has_hook && is_initialised_by_front(type)) {
      libraries().emplace_back(torch::Library::IMPL, "_", key, __FILE__, __LINE__);
      libraries().back().fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_real_call>());
    } else {
      libraries().emplace_back(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
      libraries().back().impl("_local_scalar_dense", TORCH_FN(read_number));
    }
  }
  libraries().emplace_back(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  for (const char* name : {"silu_backward", "mish_backward", "_fused_rms_norm"}) {
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow((std::string("aten::") + name).c_str(), "");
    if (!op.hasKernelForDispatchKey(c10::DispatchKey::CUDA)) {
      libraries().back().impl(name, torch::CppFunction::makeFromBoxedFunction<&refuse_real_call>());
    }
  }
}

// See Note [Activation].
const RegisterChange g_kernels(Span::kOnceActive, {&install_kernels, [] { libraries().clear(); }});
const RegisterChange g_guards(Span::kWhileFakes, {&fill_guard_slots, &restore_guard_slots});

}  // namespace

bool is_absent(c10::DeviceType type) {
  const c10::impl::DeviceGuardImplInterface* guard = slot_of(type).load();
  const auto* ours = dynamic_cast<const ClaimedGuard*>(guard);
  return guard == nullptr || (ours != nullptr && !ours->has_real()) || (type == c10::kCUDA && gpu_is_missing());
}

bool is_initialised_by_front(c10::DeviceType type) {
  return type == c10::kCUDA || type == c10::kXPU || type == c10::kHPU || type == c10::kMTIA;
}

at::Scalar read_number(const at::Tensor& number) {
  if (as_fake(number) == nullptr) {
    refuse_device(number.device().type());
  }
  return read_fake_number(as_fake(number));
}

void set_absent_device_hook(AbsentDeviceHook hook) {
  g_hook.store(hook, std::memory_order_release);
}

}  // namespace torchfake
