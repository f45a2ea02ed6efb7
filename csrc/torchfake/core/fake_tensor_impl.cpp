// The fake tensor.
#include <torchfake/core/fake_tensor_impl.h>

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include <torchfake/core/errors.h>
#include <torchfake/core/kernel_environment.h>
#include <torchfake/core/version_counters.h>

#include <atomic>
#include <limits>
#include <mutex>

namespace torchfake {

namespace {

__attribute__((tls_model("initial-exec"))) thread_local c10::DeviceType t_last_accelerator = c10::kCUDA;

std::atomic<c10::DeviceIndex> g_device_count{0};

// A tensor without any of these counts no versions.
constexpr c10::DispatchKeySet kCountedKeys = c10::autograd_dispatch_keyset | c10::inplace_or_view_ks;

void note_claim(c10::Device device) {
  if (device.is_cpu() || device.is_meta()) {
    return;  // no accelerator
  }
  t_last_accelerator = device.type();
  c10::DeviceIndex count = g_device_count.load(std::memory_order_relaxed);
  while (count <= device.index() &&
         !g_device_count.compare_exchange_weak(count, static_cast<c10::DeviceIndex>(device.index() + 1))) {
  }
}

}  // namespace

FakeTensorImpl::FakeTensorImpl(
    c10::Storage&& storage,
    c10::DispatchKeySet key_set,
    caffe2::TypeMeta dtype,
    c10::Device claimed_device,
    ModePtr mode)
    // Without autograd keys, as an inference tensor: such tensors are created without a version counter.
    : c10::TensorImpl(c10::TensorImpl::VIEW, std::move(storage), key_set - kCountedKeys, dtype),
      claimed_device_(claimed_device),
      mode_(std::move(mode)) {
  key_set_ = key_set - c10::python_ks;
  if (C10_LIKELY(!is_inference())) {
    version_counter_ = take_version_counter();
  }
  set_custom_device(true);
  note_claim(claimed_device_);
  mode_->note_use();
}

FakeTensorImpl::~FakeTensorImpl() {
  if (version_counter_.enabled() && version_counter_.unique()) {
    leave_version_counter(std::move(version_counter_));
  }
}

void FakeTensorImpl::release_resources() {
  TensorImpl::release_resources();
  memos_.reset();
  mode_.reset();
}

c10::DeviceType last_claimed_accelerator() {
  return t_last_accelerator;
}

c10::DeviceIndex claimed_device_count() {
  return g_device_count.load(std::memory_order_relaxed);
}

FakeGeometry FakeTensorImpl::geometry() const {
  return {
      sizes_and_strides_,
      storage_offset_,
      numel_,
      is_contiguous_,
      is_channels_last_,
      is_channels_last_contiguous_,
      is_channels_last_3d_,
      is_channels_last_3d_contiguous_,
      is_non_overlapping_and_dense_};
}

void FakeTensorImpl::set_geometry(const FakeGeometry& geometry) {
  sizes_and_strides_ = geometry.sizes_and_strides;
  storage_offset_ = geometry.storage_offset;
  numel_ = geometry.numel;
  is_contiguous_ = geometry.is_contiguous;
  is_channels_last_ = geometry.is_channels_last;
  is_channels_last_contiguous_ = geometry.is_channels_last_contiguous;
  is_channels_last_3d_ = geometry.is_channels_last_3d;
  is_channels_last_3d_contiguous_ = geometry.is_channels_last_3d_contiguous;
  is_non_overlapping_and_dense_ = geometry.is_non_overlapping_and_dense;
}

c10::Device FakeTensorImpl::device_custom() const {
  return InKernel::active() ? c10::Device(c10::kMeta) : claimed_device_;
}

namespace {

// Shared by all fakes: two threads may read the same fake, and reading values is rare.
std::mutex& memos_mutex() {
  static auto* mutex = new std::mutex();  // never destroyed: threads may outlive static storage
  return *mutex;
}

}  // namespace

std::optional<c10::Scalar> FakeTensorImpl::memo(ValueMemos::Kind kind) const {
  std::lock_guard<std::mutex> lock(memos_mutex());
  return memos_ == nullptr ? std::nullopt : memos_->get(kind, version_counter().current_version(), mode_->epoch);
}

void FakeTensorImpl::set_memo(ValueMemos::Kind kind, c10::Scalar value) {
  if (is_inference()) {
    return;
  }
  std::lock_guard<std::mutex> lock(memos_mutex());
  if (memos_ == nullptr) {
    memos_ = std::make_unique<ValueMemos>();
  }
  memos_->set(kind, std::move(value), version_counter().current_version(), mode_->epoch);
}

// Note [Sizes read as numbers]
// PyTorch's own code reads some sizes as numbers, mostly in decompositions that were not written for symbols. Each size
// that is read is specialised: a guard fixes it at its current value. Other sizes stay symbolic:
//
//     F.adaptive_max_pool2d(x, (None, 3)) of (3, height, width)   guards `height == 4`, and nothing about width
//
// A symbol without a hint is an UnbackedSymbolError. Rejected: refusing such calls, as plain tensors do ("Cannot call
// sizes() on tensor with symbolic sizes/strides"). The result is right wherever the guards hold.
c10::IntArrayRef FakeTensorImpl::read_as_numbers(c10::SymIntArrayRef values, std::vector<int64_t> ReadNumbers::* place)
    const {
  std::vector<int64_t> numbers;
  numbers.reserve(values.size());
  for (const c10::SymInt& value : values) {
    numbers.push_back(value.guard_int(__FILE__, __LINE__));
  }
  std::lock_guard<std::mutex> lock(memos_mutex());
  if (read_numbers_ == nullptr) {
    read_numbers_ = std::make_unique<ReadNumbers>();
  }
  std::vector<int64_t>& kept = (*read_numbers_).*place;
  if (kept != numbers) {  // otherwise another thread may be reading it
    kept = std::move(numbers);
  }
  return kept;
}

c10::IntArrayRef FakeTensorImpl::sizes_custom() const {
  return has_symbolic_sizes_strides() && !matches_python_custom(SizesStridesPolicy::CustomSizes)
      ? read_as_numbers(sym_sizes(), &ReadNumbers::sizes)
      : TensorImpl::sizes_custom();
}

c10::IntArrayRef FakeTensorImpl::strides_custom() const {
  return has_symbolic_sizes_strides() && !matches_python_custom(SizesStridesPolicy::CustomStrides)
      ? read_as_numbers(sym_strides(), &ReadNumbers::strides)
      : TensorImpl::strides_custom();
}

int64_t FakeTensorImpl::size_custom(int64_t dim) const {
  return has_symbolic_sizes_strides() ? sym_size(dim).guard_int(__FILE__, __LINE__) : TensorImpl::size_custom(dim);
}

int64_t FakeTensorImpl::numel_custom() const {
  return has_symbolic_sizes_strides() ? sym_numel().guard_int(__FILE__, __LINE__) : TensorImpl::numel_custom();
}

int64_t FakeTensorImpl::storage_offset_custom() const {
  return has_symbolic_sizes_strides() ? sym_storage_offset().guard_int(__FILE__, __LINE__)
                                      : TensorImpl::storage_offset_custom();
}

namespace {

// Whether the strides are known to be the products of the sizes, with the dimensions in this order, innermost first.
bool has_packed_strides(
    c10::SymIntArrayRef sizes,
    c10::SymIntArrayRef strides,
    std::initializer_list<size_t> channels_last = {}) {
  c10::SymInt expected = 1;
  for (size_t place = 0; place < sizes.size(); ++place) {
    const size_t dim = channels_last.size() == 0 ? sizes.size() - 1 - place : channels_last.begin()[place];
    if (sizes[dim].maybe_as_int() == std::optional<int64_t>(1)) {
      continue;
    }
    if (!strides[dim].sym_eq(expected).statically_known_true(__FILE__, __LINE__)) {
      return false;
    }
    expected = expected * sizes[dim];
  }
  return true;
}

}  // namespace

c10::SymBool FakeTensorImpl::sym_is_contiguous_custom(at::MemoryFormat memory_format) const {
  if (has_symbolic_sizes_strides() && !matches_python_custom(SizesStridesPolicy::CustomStrides)) {
    const c10::SymIntArrayRef sizes = sym_sizes();
    const bool is_packed = memory_format == at::MemoryFormat::ChannelsLast
        ? sizes.size() == 4 && has_packed_strides(sizes, sym_strides(), {1, 3, 2, 0})
        : memory_format == at::MemoryFormat::ChannelsLast3d
        ? sizes.size() == 5 && has_packed_strides(sizes, sym_strides(), {1, 4, 3, 2, 0})
        : has_packed_strides(sizes, sym_strides());
    if (is_packed) {
      return true;
    }
  }
  return TensorImpl::sym_is_contiguous_custom(memory_format);
}

c10::SymBool FakeTensorImpl::sym_is_non_overlapping_and_dense_custom() const {
  const bool is_packed = has_symbolic_sizes_strides() && !matches_python_custom(SizesStridesPolicy::CustomStrides) &&
      has_packed_strides(sym_sizes(), sym_strides());
  return is_packed ? c10::SymBool(true) : TensorImpl::sym_is_non_overlapping_and_dense_custom();
}

const char* FakeTensorImpl::tensorimpl_type_name() const {
  return "FakeTensorImpl";
}

template <typename Version>
c10::intrusive_ptr<c10::TensorImpl> FakeTensorImpl::copy_and_detach(Version&& version, bool allow_metadata_change)
    const {
  auto copy = c10::make_intrusive<FakeTensorImpl>(c10::Storage(storage_), key_set_, data_type_, claimed_device_, mode_);
  copy_tensor_metadata(this, copy.get(), std::forward<Version>(version), allow_metadata_change);
  copy->refresh_numel();
  copy->refresh_contiguous();
  return copy;
}

namespace {

// A TorchDispatchMode or a subclass with __torch_dispatch__ expects detach() as an operator: TensorImpl's own
// implementation dispatches it, and the call comes back through the fallback.
bool python_sees_detach(c10::DispatchKeySet key_set) {
  return !c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::Python) &&
      (c10::impl::TorchDispatchModeTLS::stack_len() > 0 || key_set.has(c10::DispatchKey::Python));
}

}  // namespace

c10::intrusive_ptr<c10::TensorImpl> FakeTensorImpl::shallow_copy_and_detach(
    const c10::VariableVersion& version_counter,
    bool allow_tensor_metadata_change) const {
  if (python_sees_detach(key_set_)) {
    return TensorImpl::shallow_copy_and_detach(version_counter, allow_tensor_metadata_change);
  }
  return copy_and_detach(version_counter, allow_tensor_metadata_change);
}

c10::intrusive_ptr<c10::TensorImpl> FakeTensorImpl::shallow_copy_and_detach(
    c10::VariableVersion&& version_counter,
    bool allow_tensor_metadata_change) const {
  if (python_sees_detach(key_set_)) {
    return TensorImpl::shallow_copy_and_detach(std::move(version_counter), allow_tensor_metadata_change);
  }
  return copy_and_detach(std::move(version_counter), allow_tensor_metadata_change);
}

void FakeTensorImpl::shallow_copy_from(const c10::intrusive_ptr<c10::TensorImpl>& impl) {
  const FakeTensorImpl* other = as_fake(impl.get());
  if (other == nullptr) {
    at_the_boundary([] {
      raise(
          ErrorKind::kRealTensor,
          "set_data",
          "`fake.data = real` would leave a fake with real data; convert the right side with torchfake.to_fake first.");
    });
  }
  TensorImpl::shallow_copy_from(impl);
  claimed_device_ = other->claimed_device_;
  mode_ = other->mode_;
  set_custom_device(true);
  refresh_numel();
  refresh_contiguous();
}

c10::DispatchKeySet key_set_for(c10::Device device, c10::ScalarType dtype) {
  const c10::DispatchKey backend = c10::computeDispatchKey(dtype, c10::kStrided, device);
  c10::DispatchKeySet keys(backend);
  if (!KernelEnvironment::inference_mode()) {
    keys = keys | c10::getAutogradRelatedKeySetFromBackend(c10::toBackendComponent(backend));
  }
  return (keys | c10::getAutocastRelatedKeySetFromBackend(c10::toBackendComponent(backend)))
      .add(c10::DispatchKey::Fake);
}

c10::Device normalize_device(c10::Device device) {
  if (device.is_cpu() || device.is_meta()) {
    return c10::Device(device.type());
  }
  if (device.has_index()) {
    const ModePtr* mode = find_current_mode();
    const int64_t cards = mode != nullptr && *mode ? (*mode)->options.cards.get() : 0;
    if (C10_UNLIKELY(cards != 0 && device.index() >= cards)) {
      constexpr int32_t kInvalidDevice = 101;  // cudaErrorInvalidDevice
      throw c10::AcceleratorError(
          {__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
          kInvalidDevice,
          c10::str(
              "CUDA error: invalid device ordinal\nGPU device may be out of range, do you have enough GPUs?\n",
              device,
              " was requested, but the mode has ",
              cards,
              cards == 1 ? " card." : " cards."));
    }
    if (device.index() < 0 || device.index() == std::numeric_limits<c10::DeviceIndex>::max()) {
      raise(ErrorKind::kDeviceNotFaked, "", c10::str("device ", device, ": indices from 0 to 126 can be claimed."));
    }
    return device;
  }
  const auto* guard = c10::impl::device_guard_impl_registry[static_cast<size_t>(device.type())].load();
  // Without a device, a real backend's current one is an error.
  const bool is_present = guard != nullptr && guard->deviceCount() > 0;
  const c10::DeviceIndex index = is_present ? std::max<c10::DeviceIndex>(guard->getDevice().index(), 0) : 0;
  return c10::Device(device.type(), index);
}

at::Tensor make_fake(
    c10::Storage storage,
    c10::DispatchKeySet key_set,
    caffe2::TypeMeta dtype,
    const GeometryRef& geometry,
    c10::Device device,
    const ModePtr& mode) {
  auto impl = c10::make_intrusive<FakeTensorImpl>(std::move(storage), key_set, dtype, device, mode);
  impl->set_sizes_and_strides(geometry.sizes, geometry.strides, geometry.storage_offset);
  return at::Tensor(std::move(impl));
}

at::Tensor make_fake(
    c10::Storage storage,
    c10::DispatchKeySet key_set,
    caffe2::TypeMeta dtype,
    const FakeGeometry& geometry,
    c10::Device device,
    const ModePtr& mode) {
  auto impl = c10::make_intrusive<FakeTensorImpl>(std::move(storage), key_set, dtype, device, mode);
  impl->set_geometry(geometry);
  return at::Tensor(std::move(impl));
}

}  // namespace torchfake
