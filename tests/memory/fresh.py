"""Programs recorded together at the end, with the predictions noted before: fresh_*.py hold them by kind."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from workloads import Phase

FRESH: dict[str, Callable[[Phase], None]] = {}
#: By name: a function of the batch size, the limit in MiB, and the batch sizes.
FRESH_LIMITED: dict[str, tuple[Callable[[int], None], int, list[int]]] = {}


def fresh(function: Callable[[Phase], None]) -> Callable[[Phase], None]:
    FRESH[function.__name__] = function
    return function


def limited(limit: int, *batches: int) -> Callable[[Callable[[int], None]], Callable[[int], None]]:
    def enter(function: Callable[[int], None]) -> Callable[[int], None]:
        FRESH_LIMITED[function.__name__] = function, limit, list(batches)
        return function

    return enter


def load() -> None:
    """Fills both tables."""
    for kind in ("images", "scenes", "text", "training", "others", "limits"):
        importlib.import_module(f"fresh_{kind}")
