"""The fake implementations of custom operators: found for the engine, with a `torch.library.get_ctx()` that answers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NoReturn

from torch._library import fake_impl, simple_registry

from torchfake import _C
from torchfake.errors import DynamicOutputShapeException

_real_set_ctx_getter: Callable[[Any], AbstractContextManager[None]] = fake_impl.set_ctx_getter


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


def _set_ctx_getter(getter: Callable[[], Any]) -> AbstractContextManager[None]:
    # On plain meta tensors the getter raises, and speaks of FakeTensors; here the tensors are fake.
    if not _C.in_fake_mode():
        return _real_set_ctx_getter(getter)
    op: str = inspect.getclosurevars(getter).nonlocals.get("qualname", "custom operator")
    return _real_set_ctx_getter(lambda: _Context(op))


def _has_fake_impl(op: str) -> bool:
    return simple_registry.singleton.find(op).fake_impl.kernel is not None


def install() -> None:
    _C._set_fake_impl_finder(_has_fake_impl)
    fake_impl.set_ctx_getter = _set_ctx_getter  # type: ignore[assignment]
