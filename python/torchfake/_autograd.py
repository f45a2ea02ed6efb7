"""Lets backward run on fakes outside the mode too, whatever device they claim."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd import graph

from torchfake import _C

_real_run_backward = graph._engine_run_backward


def _holds_fake(outputs: Sequence[Any]) -> bool:
    return any(isinstance(output, torch.Tensor) and _C.is_fake(output) for output in outputs)


def _engine_run_backward(t_outputs: Sequence[Any], *args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
    if not _holds_fake(t_outputs):
        return _real_run_backward(t_outputs, *args, **kwargs)
    scope = _C.EnteredFakeBackward()
    try:
        return _real_run_backward(t_outputs, *args, **kwargs)
    finally:
        scope.leave()


def install() -> None:
    """Wraps the one function through which `backward` and `grad` reach the engine."""
    graph._engine_run_backward = _engine_run_backward
    torch.autograd._engine_run_backward = _engine_run_backward  # type: ignore[attr-defined]
