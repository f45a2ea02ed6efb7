// Constant propagation: random numbers that are drawn because a program may look at them.
#pragma once

#include <ATen/core/stack.h>

#include <torchfake/core/call.h>

#include <functional>

namespace torchfake {

// Note [Draws]
// Programs look at small random results: a layer is dropped where `torch.rand([]) < p`, a batch is cut out of a data set at
// `torch.randint(n, (batch,))`. A result of few elements is therefore drawn, as one run of the program would:
//
//   torch.manual_seed(0)
//   torch.rand(3).tolist()                  # from the CPU's default generator
//   torch.rand(3, device="cuda").tolist()   # from the claimed device's: by its seed, and how often it was drawn from
//
// The draw runs beside the kernel (Note [Known values]), on a hit of the cache too: the same seed gives the same numbers.
// What a real GPU would draw is not promised. The CPU's default generator is as it was once the thread has left its modes.
// Larger results draw nothing and stay unknown; so does everything in a mode with drawn_values = 0, and on a thread that is
// in no mode.

// Finds the default generator of a claimed device. Set once, at load.
using DefaultGenerator = const at::Generator& (*)(c10::Device device);
void set_default_generator(DefaultGenerator find);

// The most elements that an output of the call may have to be drawn in such a mode; 0 where nothing is.
int64_t draw_limit(const OpTraits& traits, const FakeModeOptions& options);

// Runs `body`, which calls the real CPU operator with `arguments`, so that it draws what the call draws on `device`. Puts
// another generator among the arguments where theirs belongs to a claimed device.
void with_generator(
    const Call& call,
    c10::Device device,
    torch::jit::Stack& arguments,
    const std::function<void()>& body);

}  // namespace torchfake
