// Quantized tensors of all sizes: what makes them and what takes them apart.
#pragma once

#include <torchfake/dispatch/layout_call.h>

namespace torchfake {

// The rule of some operators, named as in the table of operators, for calls that take or make a quantized fake. Null where
// stand-ins tell.
struct QuantizedRow {
  const char* names;
  LayoutRule rule;
  bool makes_quantized;  // of strided tensors
};

const std::vector<QuantizedRow>& quantized_rules();

}  // namespace torchfake
