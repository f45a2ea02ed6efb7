// Attention: the kernel that PyTorch would choose on the claimed device.
#pragma once

#include <torchfake/rules/rules.h>

namespace torchfake {

// PyTorch makes this choice in C++ only for devices it was built with. This function makes it for the others: on
// claimed CUDA, cuDNN, flash or memory-efficient attention if the inputs fit and the claimed card has the kernel; the
// plain formula everywhere else. On the CPU it returns false and leaves the call to PyTorch.
bool scaled_dot_product_attention(const Call& call);

// The choice itself, for _fused_sdp_choice, which takes the same arguments: returns the number of an at::SDPBackend.
RuleResult fused_choice(Call& call, const ModePtr& mode);

}  // namespace torchfake
