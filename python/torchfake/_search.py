"""The largest value that fits, found with few measurements.

Memory is nearly linear in a batch size, so the next value to try is where the line through two runs meets the card's
size. A run without a limit is conclusive for every card except those whose size is between the peaks of allocated and
reserved memory: there PyTorch's allocator releases memory and retries, so only a run with that limit decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

_SLOW = 4  # the number of steps without halving the remaining range before bisection


@dataclass
class Search:
    """Searches for the largest of `values` that fits, measuring each at most once.

    Attributes:
        measure: Returns the minimum and maximum bytes needed, from a run without a limit.
        confirm: Returns whether a run with the limit succeeds.
        known: Measurements by value. May include those of other cards of the same kind.
        prior: Approximate needs, used to choose the starting point.
    """

    values: Sequence[int]
    limit: int
    measure: Callable[[int], tuple[int, int]]
    confirm: Callable[[int], bool]
    known: dict[int, tuple[int, int]] = field(default_factory=dict)
    prior: dict[int, tuple[int, int]] = field(default_factory=dict)

    def largest(self) -> int | None:
        """The largest value that fits, assuming that values above one that does not fit do not fit either."""
        low, high = -1, len(self.values)  # values up to low fit, values from high on do not
        for index, value in enumerate(self.values):
            if value in self.known and low < index < high:
                low, high = (index, high) if self._fits(value) else (low, index)
        halved = 0
        while low + 1 < high:
            index = self._next(low, high, halved)
            width = high - low
            low, high = (index, high) if self._fits(self.values[index]) else (low, index)
            is_bracketed = low >= 0 and high < len(self.values)
            halved = halved + 1 if is_bracketed and (high - low) * 2 > width else 0
        return self.values[low] if low >= 0 else None

    def _fits(self, value: int) -> bool:
        if value not in self.known:
            if self._is_between(value):
                return self.confirm(value)
            self.known[value] = self.measure(value)
        least, most = self.known[value]
        return most <= self.limit or (least <= self.limit and self.confirm(value))

    def _is_between(self, value: int) -> bool:
        """Whether a run without a limit would probably be inconclusive, extrapolating from two measurements nearby."""
        band = self._band(self.known)
        near = any(abs(known - value) * 4 <= value for known in self.known)
        return band is not None and near and band[0] < value <= band[1]

    def _next(self, low: int, high: int, slow: int) -> int:
        """The next index to try, between the highest that fits and the lowest that does not."""
        last = len(self.values) - 1
        band = self._band(self.known) or self._band(self.prior | self.known)
        if band is None:
            return last if high > last else 0 if low < 0 else (low + high) // 2
        first, end = (sum(value <= edge for value in self.values) - 1 for edge in band)
        first, end = max(first, low + 1), min(end + 1, high - 1)
        if slow > _SLOW or (first > end and high - low > 3 and slow > 1):  # the extrapolation fails
            return (low + high) // 2
        return min(max((first + end) // 2, low + 1), high - 1)

    def _band(self, needs: dict[int, tuple[int, int]]) -> tuple[float, float] | None:
        """The values at which the extrapolated needs (least, most) reach the limit: surely fits, surely does not."""
        least, most = (self._crossing({value: both[which] for value, both in needs.items()}) for which in (0, 1))
        return None if least is None or most is None else (min(most, least), max(most, least))

    def _crossing(self, needs: dict[int, int]) -> float | None:
        """The value at which the line through the two points nearest to the limit reaches it."""
        points = sorted(needs.items())
        below = [point for point in points if point[1] <= self.limit][-2:]
        above = [point for point in points if point[1] > self.limit][:2]
        pair = [below[-1], above[0]] if below and above else (below or above)
        if len(pair) < 2 or pair[1][1] <= pair[0][1]:
            return None
        (x0, y0), (x1, y1) = pair
        return x0 + (self.limit - y0) * (x1 - x0) / (y1 - y0)
