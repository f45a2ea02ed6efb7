"""Lets backward run on fakes outside the mode too, whatever device they claim."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd import graph

from torchfake.fake import find_fake, in_mode_of

_real_run_backward = graph._engine_run_backward


def _engine_run_backward(t_outputs: Sequence[Any], *args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
    fake = find_fake(t_outputs)
    if fake is None:
        return _real_run_backward(t_outputs, *args, **kwargs)
    # Backward makes tensors of its own, on the devices of those it is given: they have to be fake.
    with in_mode_of(fake):
        return _real_run_backward(t_outputs, *args, **kwargs)


def install() -> None:
    """Wraps the one function through which `backward` and `grad` reach the engine."""
    graph._engine_run_backward = _engine_run_backward
    torch.autograd._engine_run_backward = _engine_run_backward  # type: ignore[attr-defined]
