"""The first so many different cases of a grid, in its order; every grid of single calls is limited by it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TypeVar

Case = TypeVar("Case", bound=Hashable)


def distinct(count: int, is_usable: Callable[[Case], bool], *sources: Iterable[Case]) -> Iterator[Case]:
    seen: set[Case] = set()
    for case in itertools.chain(*sources):
        if len(seen) == count:
            return
        if is_usable(case) and case not in seen:
            seen.add(case)
            yield case
