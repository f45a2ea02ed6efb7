"""`module.to()` where it makes parameters fake that were real: the module gets new ones, the real ones stay real."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from torchfake import _C

_real_is_compatible: Callable[[Tensor, Tensor], bool] = torch._has_compatible_shallow_copy_type


# The names of the arguments are those that PyTorch's compiler expects.
def _is_compatible(input: Tensor, from_: Tensor) -> bool:
    """Asked by modules: whether `input.data = from_` works, which is an error between a real tensor and a fake."""
    return _C.is_plain_fake(input) == _C.is_plain_fake(from_) and _real_is_compatible(input, from_)


def install() -> None:
    """Puts the function in place."""
    torch._has_compatible_shallow_copy_type = _is_compatible
