// Interpolation by scale factors: the composite that turns factors into sizes.
#pragma once

#include <torchfake/core/call.h>

namespace torchfake {

// upsample_*.vec(input, output_size, [align_corners,] scale_factors). The decomposition only takes numbers as sizes.
bool resample_by_factors(const Call& call);

}  // namespace torchfake
