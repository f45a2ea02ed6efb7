"""Functions of PyTorch in Python that look at values, and whose outcome does not depend on what they see.

They ask whether their input is valid, and raise if not; or for a number that they only multiply with. On values that
are known the answer is the true one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchfake import _C

_MANY = 1 << 30


def with_valid_input(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Whatever is asked of values holds."""
    return _within(_C.EnteredValidInput(_MANY), original, *args, **kwargs)


def with_nothing_negative(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What is searched for is not found."""
    return _within(_C.EnteredValidInput(0), original, *args, **kwargs)


def with_factors_alone(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Numbers that are asked for only scale."""
    return _within(_C.EnteredFactorsAlone(), original, *args, **kwargs)


def _within(entered: Any, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    try:
        return function(*args, **kwargs)
    finally:
        entered.leave()
