// Admission: whose call it is, and what becomes of real tensors among its arguments.
#pragma once

#include <torchfake/core/call.h>

namespace torchfake {

// The way a call goes.
enum class Route : uint8_t {
  kFake,  // the engine answers
  kReal,  // left to the real operator
  kLift,  // a real tensor becomes a fake with known values: torch.tensor([1, 2])
  kNumbers,  // all tensors are Python numbers: torch.add(1, 2)
  kDecomposed,  // into operators that come back here one by one
  kOneByOne,  // a foreach operator on several devices: for each element of its lists
  kLayout,  // takes or makes a fake of another layout: see Note [Layout calls]
  kLayoutKeptOut,  // the same where the engine is kept out
};

// Throws MixedModesError for a fake of another mode than the thread's (or the first fake's), where one of the two is
// exclusive.
Route find_route(const Call& call, const ModePtr& mode);

// Makes real tensors among the arguments fake where they may be, and throws RealTensorError, having changed nothing,
// where they may not.
void admit_real_tensors(Call& call, const ModePtr& mode);

// How a mode of RealTensors::kConverted makes a real tensor fake: the same fake every time. Set once, when the library is
// loaded.
using Converter = at::Tensor (*)(const at::Tensor& tensor, const ModePtr& mode);
void set_converter(Converter converter);

}  // namespace torchfake
