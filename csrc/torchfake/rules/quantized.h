// Quantized tensors of any size: operators that quantize, dequantize or share storage.
#pragma once

#include <torchfake/dispatch/layout_call.h>

namespace torchfake {

// The rule of some operators, named as in the table of operators, for calls with a quantized fake among their arguments
// or results. Null if the call runs on stand-ins.
struct QuantizedRow {
  const char* names;
  LayoutRule rule;
  bool makes_quantized;  // from strided tensors
};

// The rows of all operators with such a rule.
const std::vector<QuantizedRow>& quantized_rules();

}  // namespace torchfake
