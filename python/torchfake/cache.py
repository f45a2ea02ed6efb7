"""The shape cache: an operator called again with the same metadata and arguments returns without running a kernel.

One cache serves all threads of the process. The key of an entry contains everything the result can depend on, so the
cache changes no result. These functions report its statistics, set its limits, and check it.
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
    """The counters of the cache since the last `clear_cache()`, and its contents.

    Attributes:
        hits: Calls answered from the cache.
        misses: Calls that ran a kernel; the cache may have stored the result.
        bypasses: Calls that bypassed the cache, by reason.
        size: Number of entries.
        bytes: Memory of the entries.
        max_size: Limit on the number of entries.
        max_bytes: Limit on the memory.
    """

    hits: int
    misses: int
    bypasses: dict[str, int]
    size: int
    bytes: int
    max_size: int
    max_bytes: int


def cache_info() -> CacheInfo:
    """The counters and contents of the cache.

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
    """Logs the counters of the cache to the logger `torchfake.cache`, at level INFO.

    >>> from torchfake import dump_cache_stats
    >>> dump_cache_stats()
    """
    info = cache_info()
    _log.info("cache: %d hits, %d misses, %d entries of %d bytes", info.hits, info.misses, info.size, info.bytes)
    for reason, count in sorted(info.bypasses.items(), key=lambda item: -item[1]):
        _log.info("cache: %d bypasses: %s", count, reason)


def clear_cache() -> None:
    """Empties the cache and resets its counters.

    >>> from torchfake import cache_info, clear_cache
    >>> clear_cache()
    >>> cache_info().size, cache_info().hits
    (0, 0)
    """
    _C.clear_cache()


def set_cache_limits(*, max_size: int | None = None, max_bytes: int | None = None) -> None:
    """Limits the cache by entries, by memory, or both, and empties it. The least recently used entries go first.

    Args:
        max_size: Limit on the number of entries; None leaves it unchanged.
        max_bytes: Limit on the memory; None leaves it unchanged.

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
    """Runs the kernel for every call in its scope, on all threads. A context manager and a decorator.

    Scopes may overlap, on one thread or on several: the cache is used again when the last of them has ended.

    Args:
        fake_mode: The only mode affected; all modes if left out.

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
    """Runs the kernel on every cache hit too, on all threads, and compares. A context manager and a decorator.

    Scopes may overlap, on one thread or on several: hits are compared until the last of them has ended.

    Raises:
        MetadataMismatchError: Raised by the operator call for which kernel and cache differ.

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
