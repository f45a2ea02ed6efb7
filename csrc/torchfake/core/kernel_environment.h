// The global state that kernels and rules may read. No other file reads it: `bash run lint` checks that.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>

namespace torchfake {

struct ModeState;

// Note [Kernel environment]
// The outcome of a call depends on its arguments and on global state: the default dtype, backends that were switched off,
// the number of threads. What an outcome depends on must be in its cache key. A few settings are part of every key,
// because most operators depend on them. Any other setting is part of the keys of those operators alone that have read
// it: reading it through this class notes it in the CallContext, and from there in the operator's traits
// (OpTraits::settings). A key that lacks a setting which its kernel has read gets it before the outcome is stored.
//
//   conv_transpose3d, first call     key: arguments                    the kernel reads kMkldnn and kThreads;
//                                                                      stored under: arguments, mkldnn, threads
//   conv_transpose3d, second call    key: arguments, mkldnn, threads   found, if both are as they were
//
// Kernels of PyTorch's own, in C++ composites and in Python, may read any setting and do not tell: all are noted.
class KernelEnvironment {
 public:
  // The settings that are in a key only where an operator has read them.
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
    kSettingCount,
  };
  static constexpr uint32_t kAllSettings = (uint32_t{1} << kSettingCount) - 1;

  // A setting that is a switch, which all but the numbers are.
  static bool enabled(Setting setting);
  static int threads();

  // Part of every key: reading these notes nothing.
  static c10::ScalarType default_dtype();
  static c10::ScalarType default_complex_dtype();
  static bool inference_mode();
  // Whether autocast casts operators on such a device.
  static bool autocast_enabled(c10::DeviceType device);
  static c10::ScalarType autocast_dtype(c10::DeviceType device);
  // The compute capability of the cards that a mode claims, 10 * major + minor: 90 for an H200. That of the call at hand,
  // where a kernel runs.
  static int64_t cuda_capability(const ModeState& mode);
  static int64_t cuda_capability();

  // What the kernels of others may have read: everything.
  static void note_all();

  // The settings of every key, as one word.
  static uint64_t base();
  // The values of `settings`: one word for all switches, and one for each number. Returns how many words were written,
  // kMostWords at most.
  static constexpr size_t kMostWords = 4;
  static size_t values(uint32_t settings, uint64_t* words);

 private:
  static void note(Setting setting);
};

}  // namespace torchfake
