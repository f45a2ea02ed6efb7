// Random number generators for claimed devices. They hold a seed and an offset, which determine small draws
// (Note [Draws]); larger results are not drawn.
#include <c10/core/GeneratorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <ATen/Utils.h>
#include <ATen/ops/empty.h>
#include <torchfake/core/errors.h>
#include <torchfake/core/fake_tensor_impl.h>
#include <torchfake/devices/absent_devices.h>
#include <torchfake/values/draws.h>

#include <array>
#include <cstring>
#include <map>
#include <mutex>

namespace torchfake {

namespace {

class ClaimedGenerator final : public c10::GeneratorImpl {
 public:
  explicit ClaimedGenerator(c10::Device device)
      : GeneratorImpl(device, c10::DispatchKeySet(c10::computeDispatchKey(std::nullopt, c10::kStrided, device))) {}

  void set_current_seed(uint64_t seed) override {
    state_ = {seed, 0};
  }
  uint64_t current_seed() const override {
    return state_.seed;
  }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return state_.seed;
  }
  void set_offset(uint64_t offset) override {
    state_.offset = offset;
  }
  uint64_t get_offset() const override {
    return state_.offset;
  }

  // Size and layout as for CUDA: the seed, then the offset.
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    const at::Tensor state = at::detail::empty_cpu({sizeof(State)}, at::TensorOptions(c10::kByte));
    std::memcpy(state.mutable_data_ptr(), &state_, sizeof(State));
    return state.getIntrusivePtr();
  }
  void set_state(const c10::TensorImpl& state) override {
    TORCH_CHECK_TYPE(
        state.layout() == c10::kStrided && state.device().is_cpu() &&
            state.dtype() == caffe2::TypeMeta::Make<uint8_t>(),
        "RNG state must be a torch.ByteTensor");
    TORCH_CHECK(state.is_contiguous(), "RNG state must be contiguous");
    TORCH_CHECK(
        state.numel() == sizeof(State) || state.numel() == sizeof(uint64_t),
        "RNG state is wrong size: expected ",
        sizeof(State),
        " bytes, got ",
        state.numel());
    const void* bytes = state.data();
    if (bytes == nullptr) {
      raise(ErrorKind::kDataAccess, "Generator.set_state", "the state is a fake whose values are not known.");
    }
    state_ = {};
    std::memcpy(&state_, bytes, static_cast<size_t>(state.numel()));
  }

 private:
  struct State {
    uint64_t seed = c10::default_rng_seed_val;
    uint64_t offset = 0;
  };

  ClaimedGenerator* clone_impl() const override {
    auto* copy = new ClaimedGenerator(device());
    copy->state_ = state_;
    return copy;
  }

  State state_;
};

}  // namespace

at::Generator new_claimed_generator(c10::Device device) {
  return at::make_generator<ClaimedGenerator>(normalize_device(device));
}

const at::Generator& default_claimed_generator(c10::Device device) {
  static std::mutex mutex;
  static auto* generators = new std::map<std::pair<c10::DeviceType, c10::DeviceIndex>, at::Generator>();
  const c10::Device normal = normalize_device(device);
  const std::lock_guard lock(mutex);
  auto [found, is_new] = generators->try_emplace({normal.type(), normal.index()});
  if (is_new) {
    found->second = new_claimed_generator(normal);
  }
  return found->second;
}

namespace {

const bool g_registered = [] {
  set_default_generator(&default_claimed_generator);
  return true;
}();

}  // namespace

}  // namespace torchfake
