"""The fake implementations of custom operators: found for the engine, with a `torch.library.get_ctx()` that answers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NoReturn

from torch._library import simple_registry

from torchfake.errors import DynamicOutputShapeException


class _Context:
    """Where PyTorch would make a symbol for a size that depends on values, says that it does."""

    def __init__(self, op: str) -> None:
        self._op = op

    def new_dynamic_size(self, *, min: int = 0, max: int | None = None) -> NoReturn:
        raise DynamicOutputShapeException(
            f"{self._op}: the operator's fake implementation asks for a size that depends on values, and they are not "
            "known; keep this part out of the fake run.",
            self._op,
        )

    create_unbacked_symint = new_dynamic_size


def set_ctx_getter(
    original: Callable[[Any], AbstractContextManager[None]], getter: Callable[[], Any]
) -> AbstractContextManager[None]:
    # On plain meta tensors the getter raises, and speaks of FakeTensors; here the tensors are fake.
    op: str = inspect.getclosurevars(getter).nonlocals.get("qualname", "custom operator")
    return original(lambda: _Context(op))


def has_fake_impl(op: str) -> bool:
    """Whether somebody has given the operator a fake implementation, which the engine then runs."""
    return simple_registry.singleton.find(op).fake_impl.kernel is not None
