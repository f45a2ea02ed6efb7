"""Splits by a list of stand-ins, whose elements are unknown but whose sum is known.

A router counts the tokens of each expert, and the program splits all tokens by these counts:

    counts = gates.sum(0).tolist()      # stand-ins: 1, 1, 1, ...
    for tokens in x.split(counts): ...  # must cover x

The stand-ins are replaced by sizes that cover the dimension, as equal as possible.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from torchfake import _C
from torchfake.modes import fake_mode, mode_of


def _covering(tensor: Tensor, sizes: Any, dim: int) -> Any:
    """The sizes; if they are the last list of stand-ins and do not cover the dimension, sizes that do."""
    if not isinstance(sizes, (list, tuple)) or not _C.is_plain_fake(tensor) or not -tensor.dim() <= dim < tensor.dim():
        return sizes
    mode = mode_of(tensor)
    total = tensor.shape[dim]
    if not isinstance(mode, fake_mode) or list(sizes) != mode.stand_ins.last_list or sum(sizes) == total:
        return sizes
    mode.stand_ins.hear("split", "as equal as possible, every element is selected")
    size, rest = divmod(total, len(sizes))
    return [size + (place < rest) for place in range(len(sizes))]


def split(
    original: Callable[..., Any], self: Tensor, split_size: int | Sequence[int], dim: int = 0, **kwargs: Any
) -> Any:
    return original(self, _covering(self, split_size, dim), dim, **kwargs)


def split_with_sizes(
    original: Callable[..., Any], self: Tensor, split_sizes: Sequence[int], dim: int = 0, **kwargs: Any
) -> Any:
    return original(self, _covering(self, split_sizes, dim), dim, **kwargs)
