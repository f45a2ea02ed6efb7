"""Mixed precision on claimed CUDA: autocast and GradScaler ask whether CUDA is there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler
from torch.cuda.amp import common

from torchfake import _C

_real_not_available: Callable[[], bool] = common.amp_definitely_not_available
_real_is_bf16_supported: Callable[..., bool] = torch.cuda.is_bf16_supported
_real_maybe_opt_step: Callable[..., float | None] = GradScaler._maybe_opt_step


def _amp_definitely_not_available() -> bool:
    return False if _C.in_fake_mode() else _real_not_available()


def _is_bf16_supported(*args: Any, **kwargs: Any) -> bool:
    if _C.in_fake_mode() and not torch.cuda.is_available():
        return True
    return _real_is_bf16_supported(*args, **kwargs)


def _maybe_opt_step(
    self: GradScaler, optimizer: torch.optim.Optimizer, optimizer_state: dict[str, Any], *args: Any, **kwargs: Any
) -> float | None:
    # Whether a gradient overflowed is a value, and fakes have none. The step is taken: it is what a run that goes well
    # does, and what a plan has to have room for.
    if any(_C.is_fake(found) for found in optimizer_state["found_inf_per_device"].values()):
        step: Callable[..., float | None] = optimizer.step
        return step(*args, **kwargs)
    return _real_maybe_opt_step(self, optimizer, optimizer_state, *args, **kwargs)


def install() -> None:
    """Teaches PyTorch's mixed precision about claimed CUDA. Outside the mode nothing changes."""
    common.amp_definitely_not_available = _amp_definitely_not_available
    torch.cuda.is_bf16_supported = _is_bf16_supported
    GradScaler._maybe_opt_step = _maybe_opt_step  # type: ignore[method-assign]
