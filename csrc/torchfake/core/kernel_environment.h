// The global state that kernels and rules may read. No other file reads it, which `bash run lint` checks.
#pragma once

#include <ATen/SDPBackend.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace at {
class TensorBase;
}

namespace torchfake {

struct ModeState;

// Note [Kernel environment]
// The outcome of a call depends on its arguments and on global state: the default dtype, disabled backends, the number
// of threads. Everything an outcome depends on must be in its cache key. A few settings are part of every key, because
// most operators depend on them. Any other setting is part of the keys of only those operators that have read it:
// reading it through this class records it in the CallContext, and from there in the operator's traits
// (OpTraits::settings). If a kernel has read a setting that the key lacks, the setting is added to the key before the
// outcome is stored.
//
//   conv_transpose3d, first call     key: arguments                    the kernel reads kMkldnn and kThreads;
//                                                                      stored under: arguments, mkldnn, threads
//   conv_transpose3d, second call    key: arguments, mkldnn, threads   found, if neither has changed
//
// PyTorch's own kernels, in C++ composites and in Python, may read any setting without recording it, so all are
// recorded for them. Exceptions are composites of views, which only compute geometry, and those that the table of
// operators marks with `reads_no_settings`, which only call other operators: those operators record what they read.
class KernelEnvironment {
 public:
  // The settings that are part of a key only if the operator has read them.
  enum Setting : uint8_t {
    kThreads,
    kCudnn,
    kCudnnBenchmark,
    kCudnnDeterministic,
    kMkldnn,
    kMkldnnDeterministic,
    kNnpack,
    kFlashSdp,
    kMemEfficientSdp,
    kMathSdp,
    kCudnnSdp,
    kOverrideableSdp,
    kReducedMathSdp,
    kFillUninitialized,
    kGradMode,
    kLinalgBackend,
    kQuantizedEngine,
    kSdpPriority,
    kSettingCount,
  };
  static constexpr uint32_t kAllSettings = (uint32_t{1} << kSettingCount) - 1;

  using SdpOrder = std::array<at::SDPBackend, at::num_sdp_backends>;

  // A boolean setting; all but the numbers are.
  static bool enabled(Setting setting);
  static int threads();
  // The order in which kernels of attention are tried on a GPU; nullopt if the program has not set one, so that it
  // follows from the card.
  static std::optional<SdpOrder> sdp_priority();

  // Part of every key: reading these records nothing.
  static c10::ScalarType default_dtype();
  static c10::ScalarType default_complex_dtype();
  static bool inference_mode();
  static bool deterministic();
  // Throws PyTorch's error for a kernel without a deterministic implementation, or warns, if the program asked for that.
  static void alert_not_deterministic(std::string_view kernel);
  // Whether autocast casts operators on such a device.
  static bool autocast_enabled(c10::DeviceType device);
  static c10::ScalarType autocast_dtype(c10::DeviceType device);
  // The compute capability of the cards that a mode claims, 10 * major + minor: 90 for an H200. Inside a kernel, that
  // of the current call.
  static int64_t cuda_capability(const ModeState& mode);
  static int64_t cuda_capability();

  // Whether autograd tracks the tensor, which no key contains: the outcome of the call is not cached.
  static bool requires_grad(const at::TensorBase& tensor);

  // Records all settings: a kernel that is not ours may have read any of them.
  static void note_all();

  // The settings that are part of every key, as one word.
  static uint64_t base();
  // The values of `settings`: one word for all switches, and one per number. Returns the number of words written, at
  // most kMostWords.
  static constexpr size_t kMostWords = 5;
  static size_t values(uint32_t settings, uint64_t* words);

 private:
  static void note(Setting setting);
};

}  // namespace torchfake
