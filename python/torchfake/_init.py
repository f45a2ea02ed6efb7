"""`torch.nn.init` on fakes: initialisers that draw until the values please them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import init

from torchfake import _C

_real_trunc_normal_ = init._no_grad_trunc_normal_


def _no_grad_trunc_normal_(
    tensor: Tensor, mean: float, std: float, a: float, b: float, generator: torch.Generator | None = None, **kwargs: Any
) -> Tensor:
    if not _C.is_fake(tensor):
        return _real_trunc_normal_(tensor, mean, std, a, b, generator=generator, **kwargs)
    # The real one draws again what fell outside [a, b]. How often depends on the values; what comes out does not.
    with torch.no_grad():
        return tensor.normal_(mean, std, generator=generator)


def install() -> None:
    """Teaches the initialisers about fakes."""
    init._no_grad_trunc_normal_ = _no_grad_trunc_normal_
