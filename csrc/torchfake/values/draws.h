// Constant propagation: draws small random results, which programs may read.
#pragma once

#include <ATen/core/stack.h>

#include <torchfake/core/call.h>

#include <functional>

namespace torchfake {

// Note [Draws]
// Programs read small random results: they drop a layer if `torch.rand([]) < p`, or select a batch from a data set with
// `torch.randint(n, (batch,))`. Results with few elements are therefore drawn as one run of the program would draw
// them:
//
//   torch.manual_seed(0)
//   torch.rand(3).tolist()                  # from the CPU's default generator
//   torch.rand(3, device="cuda").tolist()   # from the claimed device's: by its seed, and how often it was drawn from
//
// The draw happens alongside the kernel (Note [Known values]), also on a cache hit: the same seed gives the same
// numbers. They are not promised to equal those of a real GPU. The CPU's default generator is restored when the thread
// leaves its outermost mode. Larger results are not drawn and stay unknown; so do all results in a mode with
// drawn_values = 0, and on a thread outside any mode.

// Finds the default generator of a claimed device. Set once, at load time.
using DefaultGenerator = const at::Generator& (*)(c10::Device device);
void set_default_generator(DefaultGenerator find);

// The largest number of elements for which an output of the call is drawn in such a mode; 0 draws nothing.
int64_t draw_limit(const OpTraits& traits, const FakeModeOptions& options);

// Runs `body`, which calls the real CPU operator with `arguments`, so that it draws the numbers the call draws on
// `device`. Replaces a generator of a claimed device among the arguments.
void with_generator(
    const Call& call,
    c10::Device device,
    torch::jit::Stack& arguments,
    const std::function<void()>& body);

}  // namespace torchfake
