// The workspace that cuDNN takes for one pass of a convolution. Step: outcome.
#pragma once

#include <cstddef>
#include <cstdint>

namespace torchfake::side_memory {

enum class ConvolutionPass : uint8_t { kForward, kInputGradient, kWeightGradient };

// A convolution as cuDNN computes it. A transposed one is the gradient of another's input: `in_channels` and `in_area`
// are then those of its output. Numbers are exact as long as they are below 2^53.
struct ConvolutionShape {
  double dims, batch, in_channels, out_channels, groups;
  double in_area, out_area;  // positions in an image
  double kernel, stride, padding, dilation;  // the largest over the dimensions
  double taps;  // positions in the kernel
  double winograd_tiles[2];  // of 2x2 and of 4x4 outputs in an image; 0 unless two-dimensional
  double itemsize;
  bool is_channels_last, is_bfloat16, is_transposed, may_use_tf32;
};

// In bytes, 0 if none.
size_t convolution_workspace(const ConvolutionShape& shape, ConvolutionPass pass);

}  // namespace torchfake::side_memory
