"""Mixed precision on claimed CUDA: autocast and GradScaler ask whether CUDA is there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler

from torchfake import _C


def amp_definitely_not_available(original: Callable[[], bool]) -> bool:
    return False


def is_bf16_supported(original: Callable[..., bool], *args: Any, **kwargs: Any) -> bool:
    return True  # a claimed GPU is an H200


def maybe_opt_step(
    original: Callable[..., float | None],
    self: GradScaler,
    optimizer: torch.optim.Optimizer,
    optimizer_state: dict[str, Any],
    *args: Any,
    **kwargs: Any,
) -> float | None:
    # Whether a gradient overflowed is a value, and fakes have none. The step is taken: it is what a run that goes well
    # does, and what a plan has to have room for.
    if any(_C.is_fake(found) for found in optimizer_state["found_inf_per_device"].values()):
        step: Callable[..., float | None] = optimizer.step
        return step(*args, **kwargs)
    return original(self, optimizer, optimizer_state, *args, **kwargs)
