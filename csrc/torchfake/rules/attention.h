// Attention: which kernel PyTorch would choose on the claimed device.
#pragma once

#include <torchfake/rules/rules.h>

namespace torchfake {

// The choice that PyTorch makes in C++ it has only for devices it was built with. This makes it for the others: that of
// cuDNN, flash or memory-efficient attention on claimed CUDA where the inputs fit and the claimed card has the kernel; the
// plain formula everywhere else. Returns false, and leaves the call to PyTorch, on the CPU.
bool scaled_dot_product_attention(const Call& call);

// The choice itself, for _fused_sdp_choice, which has the same arguments: a number of at::SDPBackend.
RuleResult fused_choice(Call& call, const ModePtr& mode);

}  // namespace torchfake
