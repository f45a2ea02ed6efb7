// The global state that kernels and rules may read.
#include <torchfake/core/kernel_environment.h>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/TensorBase.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <torchfake/core/call_context.h>
#include <torchfake/core/fake_mode.h>

#include <bit>
#include <utility>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace torchfake {

namespace {

at::Context& context() {
  static at::Context& context = at::globalContext();
  return context;
}

bool has(uint32_t settings, KernelEnvironment::Setting setting) {
  return (settings >> setting & 1) != 0;
}

__attribute__((always_inline)) inline bool is_on(KernelEnvironment::Setting setting) {
  switch (setting) {
    case KernelEnvironment::kCudnn:
      return context().userEnabledCuDNN();
    case KernelEnvironment::kCudnnBenchmark:
      return context().benchmarkCuDNN();
    case KernelEnvironment::kCudnnDeterministic:
      return context().deterministicCuDNN();
    case KernelEnvironment::kMkldnn:
      return context().userEnabledMkldnn();
    case KernelEnvironment::kMkldnnDeterministic:
      return context().deterministicMkldnn();
    case KernelEnvironment::kNnpack:
      return context().userEnabledNNPACK();
    case KernelEnvironment::kFlashSdp:
      return context().userEnabledFlashSDP();
    case KernelEnvironment::kMemEfficientSdp:
      return context().userEnabledMemEfficientSDP();
    case KernelEnvironment::kMathSdp:
      return context().userEnabledMathSDP();
    case KernelEnvironment::kCudnnSdp:
      return context().userEnabledCuDNNSDP();
    case KernelEnvironment::kOverrideableSdp:
      return context().userEnabledOverrideableSDP();
    case KernelEnvironment::kReducedMathSdp:
      return context().allowFP16BF16ReductionMathSDP();
    case KernelEnvironment::kFillUninitialized:
      return context().deterministicFillUninitializedMemory();
    case KernelEnvironment::kGradMode:
      return c10::GradMode::is_enabled();
    default:
      return false;  // a number
  }
}

// Unrolled, so that no switch is left: most operators with a kernel of PyTorch's own come here on every call.
template <uint8_t... kSettings>
uint64_t all_switches(std::integer_sequence<uint8_t, kSettings...> /*settings*/) {
  return (... | (static_cast<uint64_t>(is_on(static_cast<KernelEnvironment::Setting>(kSettings))) << kSettings));
}

// Whether PyTorch has chosen this order: at the start, or with the first attention on a real GPU.
bool is_pytorchs(const KernelEnvironment::SdpOrder& order) {
  using enum at::SDPBackend;
  return order ==
      KernelEnvironment::SdpOrder{flash_attention, efficient_attention, math, cudnn_attention, overrideable} ||
      order == KernelEnvironment::SdpOrder{cudnn_attention, flash_attention, efficient_attention, math, overrideable};
}

uint64_t sdp_priority_word() {
  uint64_t word = 0;
  for (const at::SDPBackend backend : context().sDPPriorityOrder()) {
    word = word << 8 | static_cast<uint8_t>(backend);
  }
  return word;
}

// How this thread computes with floating-point numbers: the rounding mode, and whether denormal numbers are zero.
// Known values depend on it (Note [Constants]).
uint64_t floating_point_control() {
#if defined(__SSE__)
  constexpr unsigned kFlushAndRounding = 0xE040;
  return _mm_getcsr() & kFlushAndRounding;
#elif defined(__aarch64__)
  uint64_t control = 0;
  __asm__ __volatile__("mrs %0, fpcr" : "=r"(control));
  return control >> 16 & 0xFFFF;
#else
  return 0;
#endif
}

}  // namespace

void KernelEnvironment::note(Setting setting) {
  if (CallContext* call = CallContext::current()) {
    call->settings |= uint32_t{1} << setting;
  }
}

void KernelEnvironment::note_all() {
  if (CallContext* call = CallContext::current()) {
    call->settings = kAllSettings;
  }
}

bool KernelEnvironment::enabled(Setting setting) {
  note(setting);
  return is_on(setting);
}

int KernelEnvironment::threads() {
  note(kThreads);
  return at::get_num_threads();
}

std::optional<KernelEnvironment::SdpOrder> KernelEnvironment::sdp_priority() {
  note(kSdpPriority);
  const SdpOrder order = context().sDPPriorityOrder();
  return is_pytorchs(order) ? std::nullopt : std::optional(order);
}

bool KernelEnvironment::requires_grad(const at::TensorBase& tensor) {
  if (CallContext* call = CallContext::current()) {
    call->is_unkeyed = true;
  }
  return tensor.requires_grad();
}

c10::ScalarType KernelEnvironment::default_dtype() {
  return c10::get_default_dtype_as_scalartype();
}

c10::ScalarType KernelEnvironment::default_complex_dtype() {
  return c10::typeMetaToScalarType(c10::get_default_complex_dtype());
}

bool KernelEnvironment::inference_mode() {
  return c10::InferenceMode::is_enabled();
}

bool KernelEnvironment::deterministic() {
  return context().deterministicAlgorithms();
}

void KernelEnvironment::alert_not_deterministic(std::string_view kernel) {
  at::Context::alertNotDeterministic(kernel);
}

bool KernelEnvironment::autocast_enabled(c10::DeviceType device) {
  return at::autocast::is_autocast_available(device) && at::autocast::is_autocast_enabled(device) &&
      !c10::impl::tls_is_dispatch_key_excluded(at::autocast::get_autocast_dispatch_key_from_device_type(device));
}

c10::ScalarType KernelEnvironment::autocast_dtype(c10::DeviceType device) {
  return at::autocast::get_autocast_dtype(device);
}

int64_t KernelEnvironment::cuda_capability(const ModeState& mode) {
  return mode.options.capability;
}

int64_t KernelEnvironment::cuda_capability() {
  return CallContext::current()->cuda_capability;
}

uint64_t KernelEnvironment::base() {
  return static_cast<uint64_t>(default_dtype()) | static_cast<uint64_t>(inference_mode()) << 8 |
      static_cast<uint64_t>(context().deterministicAlgorithms()) << 9 |
      static_cast<uint64_t>(context().deterministicAlgorithmsWarnOnly()) << 10 | floating_point_control() << 48;
}

size_t KernelEnvironment::values(uint32_t settings, uint64_t* words) {
  if (settings == 0) {
    return 0;
  }
  // The set of settings is part of the word, so that a key never matches one made before the operator read further
  // settings.
  uint64_t switches = static_cast<uint64_t>(settings) << 32;
  if (settings == kAllSettings) {
    switches |= all_switches(std::make_integer_sequence<uint8_t, kSettingCount>());
  } else {
    for (uint32_t rest = settings; rest != 0; rest &= rest - 1) {
      const auto setting = static_cast<Setting>(std::countr_zero(rest));
      switches |= static_cast<uint64_t>(is_on(setting)) << setting;
    }
  }
  size_t count = 0;
  words[count++] = switches;
  if (has(settings, kThreads)) {
    words[count++] = static_cast<uint64_t>(at::get_num_threads());
  }
  if (has(settings, kLinalgBackend)) {
    words[count++] = static_cast<uint64_t>(context().linalgPreferredBackend());
  }
  if (has(settings, kQuantizedEngine)) {
    words[count++] = static_cast<uint64_t>(context().qEngine());
  }
  if (has(settings, kSdpPriority)) {
    words[count++] = sdp_priority_word();
  }
  return count;
}

}  // namespace torchfake
