"""Data loading in the mode: seeds and indices are drawn for real, what a dataset returns is fake.

Which samples make a batch is a value. `torch.utils.data` draws it with PyTorch's random operators, and a fake has none.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor
from torch.utils.data import dataset
from torch.utils.data.dataloader import _BaseDataLoaderIter
from torch.utils.data.distributed import DistributedSampler
from torch.utils.data.sampler import RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from torchfake import _C
from torchfake.fake import no_fake_mode


def _real(original: Callable[..., Any]) -> Callable[..., Any]:
    """`original`, run outside the mode."""

    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        if not _C.in_fake_mode():
            return original(*args, **kwargs)
        with no_fake_mode():
            return original(*args, **kwargs)

    return function


def _real_steps(original: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    """A generator whose every step is run outside the mode. Between the steps its caller has the mode it had."""

    @functools.wraps(original)
    def generator(*args: Any, **kwargs: Any) -> Iterator[Any]:
        steps, end = original(*args, **kwargs), object()
        step = _real(lambda: next(steps, end))
        while (index := step()) is not end:
            yield index

    return generator


_real_weighted_init: Callable[..., None] = WeightedRandomSampler.__init__


@functools.wraps(_real_weighted_init)
def _weighted_init(self: WeightedRandomSampler, weights: Any, *args: Any, **kwargs: Any) -> None:
    if isinstance(weights, Tensor) and _C.is_fake(weights):
        weights = weights.tolist()
    _real(_real_weighted_init)(self, weights, *args, **kwargs)


def install() -> None:
    """Teaches the samplers and the loader about the mode. Outside it nothing changes."""
    # By method, not by name in torch.utils.data: a program may have imported these names before torchfake.
    for sampler in (RandomSampler, SubsetRandomSampler, WeightedRandomSampler):
        sampler.__iter__ = _real_steps(sampler.__iter__)  # type: ignore[method-assign]
    WeightedRandomSampler.__init__ = _weighted_init  # type: ignore[method-assign]
    DistributedSampler.__iter__ = _real(DistributedSampler.__iter__)  # type: ignore[method-assign]
    dataset.randperm = _real(dataset.randperm)  # type: ignore[attr-defined]
    # The seed of the workers, and samplers of the user's own. Samples are fetched elsewhere, in the mode.
    for name in ("__init__", "_next_index", "_reset"):
        setattr(_BaseDataLoaderIter, name, _real(getattr(_BaseDataLoaderIter, name)))
