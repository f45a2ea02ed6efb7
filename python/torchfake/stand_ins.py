"""The log of `fake_mode(unknown="stand-in")`: the stand-ins returned for unknown values, and where."""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from dataclasses import dataclass
from types import FrameType

from torchfake._explain import frame_of_program, written_as
from torchfake._reading_code import ends_a_slice, only_checks, reading_frame, reads_a_maximum, runs_over_iterators
from torchfake._size_flow import may_become_size
from torchfake.errors import StandInLimitError

#: The number of stand-ins in a row for one line that counts as an infinite loop.
LIMIT_IN_A_ROW = 10_000

#: The same in `for` loops alone, which usually end: each of 100,000 steps of training may read a loss.
LIMIT_IN_FOR_LOOPS = 100 * LIMIT_IN_A_ROW

#: A bound beyond this one is that of a dtype, and says nothing about sizes.
_FAR = 2.0**31 - 1

#: A check of the program that passes because it follows from stand-ins.
CHECK = "check"

#: The program's expression, by the operator that reads the value.
_WRITTEN_AS = {
    "aten::_local_scalar_dense": ".item()",
    "aten::equal": "torch.equal",
    "aten::allclose": "torch.allclose",
    "aten::nonzero": "nonzero",
    "aten::index.Tensor": "x[mask]",
}


@dataclass(slots=True)
class StandIn:
    """A line that read unknown values, and the stand-in it got."""

    file: str
    line: int
    what: str
    answer: str
    #: Whether sizes depend on the stand-in, and therefore memory figures.
    is_about_sizes: bool = False
    count: int = 0

    def to_json(self) -> dict[str, object]:
        return {
            "file": self.file,
            "line": self.line,
            "what": self.what,
            "answer": self.answer,
            "count": self.count,
            "sizes_follow": self.is_about_sizes,
        }


def _is_about_sizes(answer: str, frame: FrameType | None) -> bool:
    """Whether sizes follow from an answer: from a selection, or from a number that the program makes a size of."""
    if "element" in answer or answer.startswith("what"):
        return True
    is_integer = answer.removesuffix(" for each value").lstrip("-").isdigit()
    return is_integer and frame is not None and may_become_size(frame)


def _gives(entry: StandIn, file: str) -> bool:
    return entry.file == file and entry.what != CHECK


class StandInLog:
    """Counts the stand-ins by the line that got them. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[tuple[str, int, str, str], StandIn] = {}
        self._last: tuple[str, int] | None = None
        self._in_a_row = 0
        #: By file, the lines that called a function of a library that got a stand-in, and whether sizes follow from it.
        self._callers: dict[str, set[tuple[int, bool]]] = defaultdict(set)
        #: The stand-ins that `tolist()` returned last.
        self.last_list: list[object] | None = None

    def choose(self, usual: float, low: float, high: float, is_bool: bool) -> float:
        """The number to use for an unknown one in [low, high], by what the program does with it.

        A condition that only guards a `raise` holds, the end of a slice selects as much as it can, and a maximum is as
        large as its bounds allow. Anything else gets `usual`.
        """
        frame = reading_frame()
        if frame is None:
            return usual
        if is_bool:
            return 1.0 if only_checks(frame) else usual
        is_size = low >= 0 or low == -math.inf
        most = ends_a_slice(frame) or (0 <= high < _FAR and reads_a_maximum(frame))
        return high if is_size and most else usual

    def hear(self, op: str, answer: str) -> None:
        """Records that `op` gets `answer`.

        Raises:
            StandInLimitError: The same line has got a stand-in 10,000 times in a row; a million in `for` loops.
        """
        frame = frame_of_program()
        file, line = ("<unknown>", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)
        what = _WRITTEN_AS.get(op, op.removeprefix("aten::").partition(".")[0])
        if op == "aten::_local_scalar_dense" and frame is not None:
            what = written_as(frame) or what
        with self._lock:
            entry = self._entries.get((file, line, what, answer))
            if entry is None:
                entry = StandIn(file, line, what, answer, _is_about_sizes(answer, frame))
                self._entries[file, line, what, answer] = entry
            if "site-packages" in file:
                self._hear_callers(frame, entry.is_about_sizes)
            entry.count += 1
            self._in_a_row = self._in_a_row + 1 if self._last == (file, line) else 1
            self._last = (file, line)
            count = self._in_a_row
            may_be_endless = count % LIMIT_IN_A_ROW == 0
            too_often = may_be_endless and (count >= LIMIT_IN_FOR_LOOPS or not runs_over_iterators(frame))
            if too_often:
                self._in_a_row = 0
        if too_often:
            raise StandInLimitError(
                f"{file}:{line}: {what} was answered with a stand-in ({answer}) {count:,} times in a row, "
                "with no other unknown value read in between. A loop that ends when a value says so never ends here; "
                "bound it, or keep it out of the fake run.",
                op,
            )

    def _hear_callers(self, frame: FrameType | None, about_sizes: bool) -> None:
        while frame is not None:
            if "site-packages" not in frame.f_code.co_filename:
                self._callers[frame.f_code.co_filename].add((frame.f_lineno, about_sizes))
            frame = frame.f_back

    def lines_in(self, file: str, *, about_sizes: bool = False) -> set[int]:
        """The lines of a file that got stand-ins or called a library that did; or only those that sizes follow from."""
        with self._lock:
            read = [(entry.line, entry.is_about_sizes) for entry in self._entries.values() if _gives(entry, file)]
            return {line for line, is_size in (*read, *self._callers[file]) if is_size or not about_sizes}

    def __deepcopy__(self, memo: dict[int, object]) -> StandInLog:
        return self  # the copy of a mode shares the log

    @property
    def entries(self) -> list[StandIn]:
        """The lines, in the order of their first stand-in."""
        with self._lock:
            return list(self._entries.values())
