"""The shape cache: an operator called again with the same metadata and arguments gets its outputs without a kernel.

One cache serves all threads of the process. Everything an outcome can depend on is part of an entry's key, so the cache
changes no answer; these functions show what it does, bound it, and check it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchfake import _C

if TYPE_CHECKING:
    from torchfake.fake_tensor_mode import FakeTensorMode

__all__ = [
    "CacheInfo",
    "DispatchCacheInfo",
    "cache_info",
    "clear_cache",
    "cross_check_cache",
    "disable_fake_tensor_cache",
    "dump_cache_stats",
    "set_cache_limits",
]

_log = logging.getLogger("torchfake.cache")


@dataclass(frozen=True)
class CacheInfo:
    """What the cache has done since the last `clear_cache()`, and what it holds.

    Attributes:
        hits: Calls answered from the cache.
        misses: Calls that ran a kernel, whose outcome the cache may have kept.
        bypasses: Calls that went past the cache, by reason.
        size: Entries held.
        bytes: Memory these take.
        max_size: The most entries to hold.
        max_bytes: The most memory to take.
    """

    hits: int
    misses: int
    bypasses: dict[str, int]
    size: int
    bytes: int
    max_size: int
    max_bytes: int


def cache_info() -> CacheInfo:
    """What the cache has done, and what it holds.

    >>> import torch
    >>> from torchfake import cache_info, clear_cache, fake_mode
    >>> with fake_mode():
    ...     x = torch.rand(3)
    ...     clear_cache()
    ...     y, z = x.exp(), x.exp()
    >>> cache_info().hits, cache_info().misses, cache_info().size
    (1, 1, 1)
    """
    return CacheInfo(**_C.cache_info())


DispatchCacheInfo = CacheInfo
"""PyTorch's name for `CacheInfo`."""


def dump_cache_stats() -> None:
    """Writes what the cache has done to the logger `torchfake.cache`, at level INFO.

    >>> from torchfake import dump_cache_stats
    >>> dump_cache_stats()
    """
    info = cache_info()
    _log.info("cache: %d hits, %d misses, %d entries of %d bytes", info.hits, info.misses, info.size, info.bytes)
    for reason, count in sorted(info.bypasses.items(), key=lambda item: -item[1]):
        _log.info("cache: %d bypasses: %s", count, reason)


def clear_cache() -> None:
    """Empties the cache and sets its counts to zero.

    >>> from torchfake import cache_info, clear_cache
    >>> clear_cache()
    >>> cache_info().size, cache_info().hits
    (0, 0)
    """
    _C.clear_cache()


def set_cache_limits(*, max_size: int | None = None, max_bytes: int | None = None) -> None:
    """Bounds the cache by entries, by memory, or both, and empties it. What was used least recently goes first.

    Args:
        max_size: The most entries to hold; None leaves this limit as it is.
        max_bytes: The most memory to take; None leaves this limit as it is.

    Raises:
        ValueError: A limit is negative.

    >>> from torchfake import cache_info, set_cache_limits
    >>> before = cache_info()
    >>> set_cache_limits(max_size=1000)
    >>> cache_info().max_size, cache_info().max_bytes == before.max_bytes
    (1000, True)
    >>> set_cache_limits(max_size=before.max_size)
    """
    for name, limit in (("max_size", max_size), ("max_bytes", max_bytes)):
        if limit is not None and limit < 0:
            raise ValueError(f"set_cache_limits: {name} must be 0 or more, got {limit}")
    now = cache_info()
    _C.set_cache_limits(
        now.max_size if max_size is None else max_size,
        now.max_bytes if max_bytes is None else max_bytes,
    )


@contextlib.contextmanager
def disable_fake_tensor_cache(fake_mode: FakeTensorMode | None = None) -> Iterator[None]:
    """Runs the kernel for every call in its scope, on all threads. A context manager, and a decorator.

    Scopes may overlap, on one thread or on several: the cache answers again when the last of them has ended.

    Args:
        fake_mode: For which mode alone; all of them if left out.

    >>> import torch
    >>> from torchfake import cache_info, clear_cache, disable_fake_tensor_cache, fake_mode
    >>> with fake_mode():
    ...     x = torch.rand(3)
    ...     clear_cache()
    ...     with disable_fake_tensor_cache():
    ...         y, z = x.exp(), x.exp()
    >>> cache_info().hits, cache_info().bypasses
    (0, {'cache disabled': 2})
    """
    entered = _C.EnteredNoCache(None if fake_mode is None else fake_mode._state)
    try:
        yield
    finally:
        entered.leave()


@contextlib.contextmanager
def cross_check_cache() -> Iterator[None]:
    """Runs the kernel on every hit as well, on all threads, and compares. A context manager, and a decorator.

    Scopes may overlap, on one thread or on several: hits are compared until the last of them has ended.

    Raises:
        MetadataMismatchError: By the call in its scope for which kernel and cache differ.

    >>> import torch
    >>> from torchfake import cross_check_cache, fake_mode
    >>> with fake_mode(), cross_check_cache():
    ...     x = torch.rand(3)
    ...     y, z = x.exp(), x.exp()
    """
    entered = _C.EnteredCrossCheck()
    try:
        yield
    finally:
        entered.leave()
