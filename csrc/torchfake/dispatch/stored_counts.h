// Layout calls: sparse results whose number of stored elements only data determines.
#pragma once

#include <ATen/core/Tensor.h>

#include <torchfake/core/fake_mode.h>

namespace torchfake {

// Whether the number of stored elements may be a symbol in this mode: its environment allows symbols for sizes.
bool counts_may_be_symbols(const ModeState& mode);

// Whether the number of elements that a sparse fake stores is a symbol.
bool has_symbolic_count(const at::Tensor& sparse);

// A sparse fake like `sparse`, a sparse tensor of any kind, which stores an unknown number of elements: at most as many
// as its sizes allow, or as are given. Requires counts_may_be_symbols().
at::Tensor with_unknown_count(
    const at::Tensor& sparse,
    bool coalesced,
    c10::Device device,
    const ModePtr& mode,
    std::optional<int64_t> most = std::nullopt);

}  // namespace torchfake
