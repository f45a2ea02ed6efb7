"""The largest value that fits, by few measurements.

Memory is nearly a straight line in a batch size, so the next value to try is where the line through two runs meets the
card's size. A run without a limit tells for all cards at once, but for those whose size lies between what was allocated
and what was reserved at the most: there PyTorch's allocator gives memory back and tries again, and only a run with that
limit knows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

_SLOW = 4  # so many steps that do not halve what is left are enough


@dataclass
class Search:
    """Looks for the largest of `values` that fits; each is measured once.

    Attributes:
        measure: What a run without a limit needs at least and at most, in bytes.
        confirm: Whether a run with the limit gets through.
        known: What has been measured, by value. May hold what others measured on a card of the same kind.
        prior: Needs that may differ a little; they tell where to begin.
    """

    values: Sequence[int]
    limit: int
    measure: Callable[[int], tuple[int, int]]
    confirm: Callable[[int], bool]
    known: dict[int, tuple[int, int]] = field(default_factory=dict)
    prior: dict[int, tuple[int, int]] = field(default_factory=dict)

    def largest(self) -> int | None:
        """The largest value that fits, if what needs more than one that does not fit does not fit either."""
        low, high = -1, len(self.values)  # those up to low fit, those from high on do not
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
        """Whether a run without a limit would hardly tell, by the line through two others that are not far away."""
        band = self._band(self.known)
        near = any(abs(known - value) * 4 <= value for known in self.known)
        return band is not None and near and band[0] < value <= band[1]

    def _next(self, low: int, high: int, slow: int) -> int:
        """The index to try next, of those between the highest that fits and the lowest that does not."""
        last = len(self.values) - 1
        band = self._band(self.known) or self._band(self.prior | self.known)
        if band is None:
            return last if high > last else 0 if low < 0 else (low + high) // 2
        first, end = (sum(value <= edge for value in self.values) - 1 for edge in band)
        first, end = max(first, low + 1), min(end + 1, high - 1)
        if slow > _SLOW or (first > end and high - low > 3 and slow > 1):  # the line leads nowhere
            return (low + high) // 2
        return min(max((first + end) // 2, low + 1), high - 1)

    def _band(self, needs: dict[int, tuple[int, int]]) -> tuple[float, float] | None:
        """The values that meet the limit, by the lines through the needs next to it: surely fits, surely does not."""
        least, most = (self._crossing({value: both[which] for value, both in needs.items()}) for which in (0, 1))
        return None if least is None or most is None else (min(most, least), max(most, least))

    def _crossing(self, needs: dict[int, int]) -> float | None:
        """Where the line through the two points next to the limit meets it."""
        points = sorted(needs.items())
        below = [point for point in points if point[1] <= self.limit][-2:]
        above = [point for point in points if point[1] > self.limit][:2]
        pair = [below[-1], above[0]] if below and above else (below or above)
        if len(pair) < 2 or pair[1][1] <= pair[0][1]:
            return None
        (x0, y0), (x1, y1) = pair
        return x0 + (self.limit - y0) * (x1 - x0) / (y1 - y0)
