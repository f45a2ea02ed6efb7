"""Memory pools of the allocator of claimed cards, for CUDA graphs and `torch.cuda.MemPool`, and the memory history.

While a graph is captured, its operators run once, as eager calls; a replay changes no metadata. Memory allocated during
the capture comes from the graph's pool, as on a real card.
"""

from __future__ import annotations

import itertools
import sys
import warnings
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from torchfake import _C
from torchfake._cards import Cards

_PoolId = tuple[int, int]

_graph_pools = itertools.count(1)
_user_pools = itertools.count(1)
#: The number of users that may still allocate from a pool, by cards, device and pool.
_users: weakref.WeakKeyDictionary[Cards, Counter[tuple[int, _PoolId]]] = weakref.WeakKeyDictionary()


def _begin(cards: Cards, index: int, pool: _PoolId) -> None:
    if cards.model is not None:
        cards.model.begin_pool(f"cuda:{index}", pool)
        _users.setdefault(cards, Counter())[index, pool] += 1


def _end(cards: Cards, index: int) -> None:
    if cards.model is not None:
        cards.model.end_pool(f"cuda:{index}")


def _release(cards: Cards, index: int, pool: _PoolId) -> None:
    users = _users.get(cards)
    if cards.model is None or users is None:
        return
    users[index, pool] -= 1
    if users[index, pool] <= 0:
        del users[index, pool]
        cards.model.release_pool(f"cuda:{index}", pool)


# ---- Graphs ----------------------------------------------------------------------------------------------------------


class CardGraph:
    """A graph of a claimed card. Poses as a `torch.cuda.CUDAGraph`, whose constructor may call the driver."""

    def __init__(self, keep_graph: bool = False) -> None:
        self._cards: Cards | None = None
        self._held: tuple[int, _PoolId] | None = None
        self._pool: _PoolId = (0, 0)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return torch.cuda.CUDAGraph

    def capture_begin(
        self, pool: Any = None, capture_error_mode: str = "global", check_input_liveness: bool = False
    ) -> None:
        from torchfake._virtual_cards import current_cards

        self.reset()
        self._cards = current_cards()
        index = _C.exchange_device("cuda", None)
        asked = pool.id if isinstance(pool, torch.cuda.MemPool) else pool
        self._pool = (0, next(_graph_pools)) if asked is None else tuple(asked)
        if self._cards is not None:
            self._held = (index, self._pool)
            _begin(self._cards, *self._held)

    def capture_end(self) -> None:
        if self._cards is not None and self._held is not None:
            _end(self._cards, self._held[0])

    def instantiate(self) -> None:
        pass

    def replay(self) -> None:
        pass

    def reset(self) -> None:
        held, self._held = self._held, None
        if self._cards is not None and held is not None:
            _release(self._cards, *held)

    def __del__(self) -> None:
        if sys is not None and not sys.is_finalizing():
            self.reset()

    def pool(self) -> Any:
        return self._pool

    def enable_debug_mode(self) -> None:
        pass

    def debug_dump(self, debug_path: str) -> None:
        pass


def graph_pool_handle(cards: Cards) -> _PoolId:
    return (0, next(_graph_pools))


# ---- User pools ------------------------------------------------------------------------------------------------------


class CardPool:
    """A pool of claimed cards. Poses as a `torch.cuda.MemPool`, whose constructor may call the driver."""

    def __init__(self, allocator: Any = None, use_on_oom: bool = False, no_split: bool = False) -> None:
        if allocator is not None:
            raise NotImplementedError("torch.cuda.MemPool: claimed cards only have PyTorch's own allocator")
        self._id: _PoolId = (next(_user_pools), 0)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return torch.cuda.MemPool

    @property
    def id(self) -> _PoolId:
        """The pool's identifier."""
        return self._id

    @property
    def allocator(self) -> None:
        return None

    def use_count(self) -> int:
        from torchfake._virtual_cards import current_cards

        cards = current_cards()
        users = Counter[tuple[int, _PoolId]]() if cards is None else _users.get(cards, Counter())
        return 1 + sum(count for (_, pool), count in users.items() if pool == self._id)

    def snapshot(self, include_traces: bool = True) -> list[dict[str, Any]]:
        segments: list[dict[str, Any]] = torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
        return [segment for segment in segments if tuple(segment["segment_pool_id"]) == self._id]


def new_pool(original: Callable[..., Any], called: type, *args: Any, **kwargs: Any) -> Any:
    from torchfake._virtual_cards import current_cards

    if called is torch.cuda.MemPool and current_cards() is not None:
        return CardPool(*args, **kwargs)
    return original(called, *args, **kwargs)


def begin_pool(cards: Cards, index: int, pool: _PoolId) -> None:
    _begin(cards, index, (pool[0], pool[1]))


def end_pool(cards: Cards, index: int, pool: _PoolId) -> None:
    _end(cards, index)


def release_pool(cards: Cards, index: int, pool: _PoolId) -> None:
    _release(cards, index, (pool[0], pool[1]))


# ---- History ---------------------------------------------------------------------------------------------------------


def record_history(cards: Cards, enabled: str | bool | None = "all", *args: Any, **kwargs: Any) -> None:
    """`torch.cuda.memory._record_memory_history`, including its older form, whose first argument is a bool."""
    if isinstance(enabled, bool):
        _record_by_flags(cards, enabled, *args, **kwargs)
    else:
        _record(cards, enabled, *args, **kwargs)


def _record(
    cards: Cards,
    enabled: str | None,
    context: str | None = "all",
    stacks: str = "all",
    max_entries: int = sys.maxsize,
    device: Any = None,
    clear_history: bool = False,
    compile_context: bool = False,
    global_record_annotations: bool = False,
    skip_actions: list[str] | None = None,
) -> None:
    if cards.model is not None:
        cards.model.set_history(enabled, context, stacks, max_entries, clear_history, skip_actions or [])
    elif enabled is not None:
        warnings.warn(
            "torch.cuda.memory._record_memory_history: this mode counts live bytes alone, and has no history; name the "
            "cards, as in fake_mode(gpus='H200'), to have one",
            stacklevel=4,
        )


def _record_by_flags(
    cards: Cards,
    enabled: bool,
    record_context: bool = True,
    trace_alloc_max_entries: int = 1,
    trace_alloc_record_context: bool = False,
    *args: Any,
    **kwargs: Any,
) -> None:
    context = None if not record_context else "alloc" if trace_alloc_record_context else "state"
    _record(cards, "all" if enabled else None, context, max_entries=trace_alloc_max_entries)


def snapshot(cards: Cards, device: Any = None, augment_with_fx_traces: bool = False) -> dict[str, Any]:
    """`torch.cuda.memory._snapshot`, for all cards."""
    if cards.model is None:
        empty: list[list[Any]] = [[] for _ in range(len(cards))]
        return {"segments": [], "device_traces": empty, "allocator_settings": {}, "external_annotations": []}
    return cards.model.snapshot(len(cards))


def set_settings(cards: Cards, env: str) -> None:
    """`torch.cuda.memory._set_allocator_settings`: applies to later allocations."""
    if cards.model is not None:
        cards.model.set_config(env)


def backend(cards: Cards) -> str:
    return "native"


#: The functions used in a mode with cards, by module and name.
ON_CARDS: dict[str, Callable[..., Any]] = {
    "torch.cuda.graphs:graph_pool_handle": graph_pool_handle,
    "torch.cuda.memory:_record_memory_history": record_history,
    "torch.cuda.memory:_snapshot": snapshot,
    "torch.cuda.memory:_set_allocator_settings": set_settings,
    "torch.cuda.memory:get_allocator_backend": backend,
    "torch.cuda.memory:_cuda_beginAllocateCurrentThreadToPool": begin_pool,
    "torch.cuda.memory:_cuda_beginAllocateToPool": begin_pool,
    "torch.cuda.memory:_cuda_endAllocateToPool": end_pool,
    "torch.cuda.memory:_cuda_releasePool": release_pool,
}
