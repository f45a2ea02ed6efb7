"""The things measured side by side: each makes its tensors, and runs its calls, in its own surroundings."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import torchfake


def fake_tensor_mode(cache: bool = True) -> FakeTensorMode:
    mode = FakeTensorMode()
    mode.cache_enabled = cache
    return mode


@contextlib.contextmanager
def uncached_fake_mode() -> Iterator[None]:
    with torchfake.fake_mode(), torchfake.disable_fake_tensor_cache():
        yield


@dataclass
class Side:
    """Surroundings for calls.

    Attributes:
        name: What the tables call it.
        surroundings: A context to create tensors and run calls in. Made once: FakeTensorMode's tensors stay with the
            very mode that made them.
        device: Where its tensors say they are.
    """

    name: str
    surroundings: Callable[[], Any]
    device: str = "cpu"
    _made: Any = field(default=None, repr=False)

    def entered(self) -> Any:
        """The surroundings, to be entered; each time the same ones where they can be entered again."""
        if isinstance(self._made, FakeTensorMode):
            return self._made
        self._made = self.surroundings()
        return self._made


def op_sides() -> list[Side]:
    return [
        Side("hit", torchfake.fake_mode),
        Side("miss", uncached_fake_mode),
        Side("meta", contextlib.nullcontext, device="meta"),
        Side("FakeTensorMode hit", fake_tensor_mode),
        Side("FakeTensorMode miss", lambda: fake_tensor_mode(cache=False)),
        Side("real", contextlib.nullcontext),
    ]


def model_sides() -> list[Side]:
    return [
        Side("torchfake", torchfake.fake_mode),
        Side("FakeTensorMode", fake_tensor_mode),
        Side("meta", contextlib.nullcontext, device="meta"),
        Side("tiny real", contextlib.nullcontext),
    ]


def clear_caches() -> None:
    torchfake.clear_cache()
    FakeTensorMode.cache_clear()


def torchfake_answered(call: Callable[[], object]) -> bool:
    """Whether the shape cache answers all operators of `call`."""
    before = torchfake.cache_info()
    call()
    after = torchfake.cache_info()
    return after.hits > before.hits and after.misses == before.misses and after.bypasses == before.bypasses


def fake_tensor_mode_answered(call: Callable[[], object]) -> bool:
    """Whether FakeTensorMode's cache answers all operators of `call`."""
    before = FakeTensorMode.cache_info()
    call()
    after = FakeTensorMode.cache_info()
    return after.hits > before.hits and after.misses == before.misses and after.bypasses == before.bypasses


def single_thread() -> None:
    """One thread for the real operators: on small tensors more would only add the wait for them."""
    torch.set_num_threads(1)
