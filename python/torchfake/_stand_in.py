"""A function in the place of one of PyTorch's."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any


class StandIn:
    """Calls `function` where `original` was, as a function or as a method.

    Equal to the original: PyTorch and programs keep tables by function, and may have made them before or after.
    """

    def __init__(self, original: Callable[..., Any], function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, original)
        self.original = original
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __eq__(self, other: object) -> bool:
        return other is self or other is self.original

    def __hash__(self) -> int:
        return hash(self.original)

    def __repr__(self) -> str:
        return repr(self.original)
