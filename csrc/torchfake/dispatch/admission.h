// Admission: decides how a call is handled, and what happens to real tensors among its arguments.
#pragma once

#include <torchfake/core/call.h>

namespace torchfake {

// How a call is handled.
enum class Route : uint8_t {
  kFake,  // by the engine
  kReal,  // by the real operator
  kLift,  // a real tensor becomes a fake with known values: torch.tensor([1, 2])
  kNumbers,  // all tensors are Python numbers: torch.add(1, 2)
  kDecomposed,  // decomposed into operators that each return to the engine
  kOneByOne,  // a foreach operator on several devices: once per element of its lists
  kLayout,  // takes or returns a fake of another layout: see Note [Layout calls]
  kLayoutKeptOut,  // the same while the engine is excluded
};

// Throws MixedModesError for a fake of a mode other than the thread's (or the first fake's) if either is exclusive.
Route find_route(const Call& call, const ModePtr& mode);

// Converts real tensors among the arguments where this is allowed, and otherwise throws RealTensorError without
// changing anything.
void admit_real_tensors(Call& call, const ModePtr& mode);

// Converts a real tensor for a mode with RealTensors::kConverted, to the same fake every time. Set once, at load time.
using Converter = at::Tensor (*)(const at::Tensor& tensor, const ModePtr& mode);
void set_converter(Converter converter);

}  // namespace torchfake
