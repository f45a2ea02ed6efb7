// The global state that kernels and rules may read.
#include <torchfake/core/kernel_environment.h>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <torchfake/core/call_context.h>
#include <torchfake/core/fake_mode.h>

namespace torchfake {

namespace {

at::Context& context() {
  static at::Context& context = at::globalContext();
  return context;
}

bool has(uint32_t settings, KernelEnvironment::Setting setting) {
  return (settings >> setting & 1) != 0;
}

bool is_on(KernelEnvironment::Setting setting) {
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

c10::ScalarType KernelEnvironment::default_dtype() {
  return c10::get_default_dtype_as_scalartype();
}

c10::ScalarType KernelEnvironment::default_complex_dtype() {
  return c10::typeMetaToScalarType(c10::get_default_complex_dtype());
}

bool KernelEnvironment::inference_mode() {
  return c10::InferenceMode::is_enabled();
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
      static_cast<uint64_t>(context().deterministicAlgorithmsWarnOnly()) << 10;
}

size_t KernelEnvironment::values(uint32_t settings, uint64_t* words) {
  if (settings == 0) {
    return 0;
  }
  // The set of settings is part of the word, so that a key never matches one made before the operator read further
  // settings.
  uint64_t switches = static_cast<uint64_t>(settings) << 32;
  for (uint8_t i = 0; i < kSettingCount; ++i) {
    const auto setting = static_cast<Setting>(i);
    switches |= static_cast<uint64_t>(has(settings, setting) && is_on(setting)) << i;
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
  return count;
}

}  // namespace torchfake
