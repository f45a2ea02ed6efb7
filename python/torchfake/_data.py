"""Data loading in the mode: seeds and indices are drawn for real, what a dataset returns is fake.

Which samples make a batch is a value. `torch.utils.data` draws it with PyTorch's random operators, and a fake has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from torchfake import _C
from torchfake.fake import no_fake_mode


def real(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`original`, run outside the mode."""
    if not _C.in_fake_mode():
        return original(*args, **kwargs)
    with no_fake_mode():
        return original(*args, **kwargs)


def real_steps(original: Callable[..., Iterator[Any]], *args: Any, **kwargs: Any) -> Iterator[Any]:
    """A generator whose every step is run outside the mode. Between the steps its caller has the mode it had."""
    steps, end = original(*args, **kwargs), object()
    while (index := real(next, steps, end)) is not end:
        yield index


def weighted_init(original: Callable[..., None], self: Any, weights: Any, *args: Any, **kwargs: Any) -> None:
    if isinstance(weights, Tensor) and _C.is_fake(weights):
        weights = weights.tolist()
    real(original, self, weights, *args, **kwargs)
