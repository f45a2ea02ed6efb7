// The workspace that cuDNN takes for one pass of a convolution, by formula. Step: outcome.
#include <torchfake/rules/convolution_workspace.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace torchfake::side_memory {

namespace {

// Note [Workspaces of convolutions]
// In 30,000 recorded convolutions a workspace is a sum of two parts. The first are copies: kernels for tensor cores
// read channels-last tensors with a multiple of four (float) or eight (half) channels, other kernels read the other
// layout. The second is what the kernel itself needs, such as the partial sums of a weight over parts of the batch:
//
//   half, channels first, 3 of 8 channels   copies of input, weight and output, padded to 8 channels
//   half, channels last, weight gradient    13 sums of the weight in float, so that 13 * 9 blocks fill a card
//   float, no TF32, 3x3                     Winograd's transform: 36 values for each 4x4 outputs
//
// These formulas are exact. Which kernel runs is a heuristic of cuDNN's that follows no simple rule. Decision trees,
// learned from the recording by tools/fit_convolutions.py, choose the formula; their errors are in
// docs/decisions/0017-memory.md.

enum class Own : uint8_t {
  kNothing,
  kCounters,  // of blocks that have finished
  kWeights,  // partial sums of the weight's gradient
  kWeightsPaddedTo4,
  kWeightsPaddedTo8,
  kInputs,
  kOutputs,
  kBlocks,  // partial sums of 128x128 tiles
  kTiles,  // partial sums of the weight's gradient as a matrix, in whole tiles
  kTaps,  // the same in tiles of 64 channels
  kWinograd,
  kColumns,  // an image unfolded
};

constexpr int kInput = 1;
constexpr int kWeight = 2;
constexpr int kOutput = 4;

struct Formula {
  uint8_t copies;  // kInput | kWeight | kOutput
  uint8_t padding;  // the multiple to which their channels are padded
  uint8_t own;
  uint16_t count, rows, columns;
};

// A leaf has feature -1 and the number of a formula; otherwise nodes with values up to `value` follow directly, others
// after `above` nodes.
struct Node {
  int8_t feature;
  double value;
  uint16_t above;
};

#include <torchfake/rules/convolution_choices.inc>

double up(double a, double multiple) {
  return std::ceil(a / multiple) * multiple;
}

struct Bytes {
  double input, weight, output;
};

// With padded channels, unless there are groups.
Bytes bytes_of(const ConvolutionShape& s, double padding) {
  const double in = s.groups == 1 ? up(s.in_channels, padding) : s.in_channels;
  const double out = s.groups == 1 ? up(s.out_channels, padding) : s.out_channels;
  return {
      s.batch * in * s.in_area * s.itemsize,
      in * out / s.groups * s.taps * s.itemsize,
      s.batch * out * s.out_area * s.itemsize};
}

// Copies for one operand, and the weight, in channels-last halves have at least four channels, as an image of three.
double copied_bytes(const ConvolutionShape& s, const Formula& formula) {
  const bool is_of_one = formula.copies == (kInput | kWeight) || formula.copies == (kWeight | kOutput);
  const double least = is_of_one && s.itemsize == 2 && s.is_channels_last ? 4 : 1;
  const Bytes copied = bytes_of(s, std::max<double>(formula.padding, least));
  return ((formula.copies & kInput) != 0 ? copied.input : 0) + ((formula.copies & kWeight) != 0 ? copied.weight : 0) +
      ((formula.copies & kOutput) != 0 ? copied.output : 0);
}

double own_bytes(const ConvolutionShape& s, const Formula& formula) {
  const double in = s.in_channels / s.groups;
  const double out = s.out_channels / s.groups;
  const double per_item = std::max(s.itemsize, 4.0) / s.itemsize;
  const double n = formula.count;
  constexpr double kFloat = 4;
  switch (static_cast<Own>(formula.own)) {
    case Own::kNothing:
      return 0;
    case Own::kCounters:
      return 131;
    case Own::kWeights:
      return n * bytes_of(s, 1).weight * per_item;
    case Own::kWeightsPaddedTo4:
      return n * bytes_of(s, 4).weight * per_item;
    case Own::kWeightsPaddedTo8:
      return n * bytes_of(s, 8).weight * per_item;
    case Own::kInputs:
      return n * bytes_of(s, 1).input * per_item;
    case Own::kOutputs:
      return n * bytes_of(s, 1).output * per_item;
    case Own::kBlocks:
      return n * 128 * 128 * kFloat;
    case Own::kTiles:
      return n * up(out, formula.rows) * up(in * s.taps, formula.columns) * kFloat;
    case Own::kTaps:
      return n * up(out, 64) * up(in, 64) * s.taps * kFloat;
    case Own::kWinograd: {
      constexpr double kTransformed = 36;
      const double tiles = s.batch * s.winograd_tiles[formula.count == 2 ? 0 : 1];
      return kTransformed * kFloat * (tiles * (s.in_channels + s.out_channels) + s.in_channels * s.out_channels);
    }
    case Own::kColumns:
      return in * s.taps * s.out_area * s.itemsize;
  }
  return 0;
}

double multiple_of(double channels) {
  const auto n = static_cast<int64_t>(channels);
  return static_cast<double>(std::min<int64_t>(n & -n, 16));
}

// In the order of `features` in tools/fit_convolutions.py.
auto features_of(const ConvolutionShape& s) {
  const Bytes bytes = bytes_of(s, 1);
  const double in = s.in_channels / s.groups;
  const double out = s.out_channels / s.groups;
  const double positions = s.batch * s.out_area;
  const double in_positions = s.batch * s.in_area;
  const double products = positions * s.in_channels * out;
  return std::array{
      s.dims,
      s.batch,
      in,
      out,
      s.groups,
      s.in_area,
      s.out_area,
      s.kernel,
      s.stride,
      s.padding,
      s.dilation,
      multiple_of(in),
      multiple_of(out),
      positions,
      in_positions,
      in * s.taps,
      out * s.taps,
      bytes.input,
      bytes.weight,
      bytes.output,
      products * s.taps,
      products,
      in_positions * s.in_channels * out,
      s.is_channels_last ? 1.0 : 0.0,
      s.is_bfloat16 ? 1.0 : 0.0,
      s.itemsize,
      s.is_transposed ? 1.0 : 0.0,
      s.taps * std::ceil(in / 64) * std::ceil(out / 64),
      std::ceil(positions / 128) * std::ceil(out / 64),
      std::ceil(in_positions / 128) * std::ceil(in / 64),
      std::ceil(out / 128) * std::ceil(in * s.taps / 128),
      products * s.taps / (bytes.input + bytes.output)};
}

// By pass, and half precision, TF32, and float or double.
constexpr const Node* kTrees[3][3] = {
    {kTree00, kTree01, kTree02},
    {kTree10, kTree11, kTree12},
    {kTree20, kTree21, kTree22}};

}  // namespace

size_t convolution_workspace(const ConvolutionShape& shape, ConvolutionPass pass) {
  const int arithmetic = shape.itemsize == 2 ? 0 : shape.itemsize == 4 && shape.may_use_tf32 ? 1 : 2;
  const auto features = features_of(shape);
  const Node* node = kTrees[static_cast<size_t>(pass)][arithmetic];
  while (node->feature >= 0) {
    node += features[static_cast<uint8_t>(node->feature)] <= node->value ? 1 : node->above;
  }
  const Formula& formula = kFormulas[static_cast<size_t>(node->value)];
  return static_cast<size_t>(own_bytes(shape, formula) + copied_bytes(shape, formula));
}

}  // namespace torchfake::side_memory
