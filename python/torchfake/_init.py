"""`torch.nn.init` on fakes: initialisers that draw until the values please them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchfake import _C


def no_grad_trunc_normal_(
    original: Callable[..., Tensor],
    tensor: Tensor,
    mean: float,
    std: float,
    a: float,
    b: float,
    generator: torch.Generator | None = None,
    **kwargs: Any,
) -> Tensor:
    if not _C.is_fake(tensor):
        return original(tensor, mean, std, a, b, generator=generator, **kwargs)
    # The real one draws again what fell outside [a, b]. How often depends on the values; what comes out does not.
    with torch.no_grad():
        return tensor.normal_(mean, std, generator=generator)
