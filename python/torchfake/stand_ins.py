"""What was answered in the place of unknown values, and where: the log of `fake_mode(unknown="stand-in")`."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from torchfake._explain import frame_of_program, written_as
from torchfake.errors import StandInLimitError

#: How often in a row one line may be answered so before it counts as a loop that never ends.
LIMIT_IN_A_ROW = 10_000

#: What the program wrote, by the operator that reads the value.
_WRITTEN_AS = {
    "aten::_local_scalar_dense": ".item()",
    "aten::equal": "torch.equal",
    "aten::allclose": "torch.allclose",
    "aten::nonzero": "nonzero",
    "aten::index.Tensor": "x[mask]",
}


@dataclass(slots=True)
class StandIn:
    """A line at which unknown values were read, and what it was told."""

    file: str
    line: int
    what: str
    answer: str
    count: int = 0

    @property
    def is_about_sizes(self) -> bool:
        """Whether sizes follow from the answer, so that figures of memory depend on it."""
        return "element" in self.answer or self.answer.startswith("what")

    def to_json(self) -> dict[str, object]:
        return {
            "file": self.file,
            "line": self.line,
            "what": self.what,
            "answer": self.answer,
            "count": self.count,
            "sizes_follow": self.is_about_sizes,
        }


class StandInLog:
    """Counts the answers by the line that got them. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[tuple[str, int, str, str], StandIn] = {}
        self._last: tuple[str, int] | None = None
        self._in_a_row = 0

    def hear(self, op: str, answer: str) -> None:
        """Notes that `op` gets `answer`.

        Raises:
            StandInLimitError: The same line has been answered so 10,000 times in a row.
        """
        frame = frame_of_program()
        file, line = ("<unknown>", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)
        what = _WRITTEN_AS.get(op, op.removeprefix("aten::").partition(".")[0])
        if op == "aten::_local_scalar_dense" and frame is not None:
            what = written_as(frame) or what
        with self._lock:
            entry = self._entries.setdefault((file, line, what, answer), StandIn(file, line, what, answer))
            entry.count += 1
            self._in_a_row = self._in_a_row + 1 if self._last == (file, line) else 1
            self._last = (file, line)
            too_often = self._in_a_row >= LIMIT_IN_A_ROW
            if too_often:
                self._in_a_row = 0
        if too_often:
            raise StandInLimitError(
                f"{file}:{line}: {what} was answered with a stand-in ({answer}) {LIMIT_IN_A_ROW:,} times in a row, "
                "with no other unknown value read in between. A loop that ends when a value says so never ends here; "
                "bound it, or keep it out of the fake run.",
                op,
            )

    def __deepcopy__(self, memo: dict[int, object]) -> StandInLog:
        return self  # the copy of a mode tells the same log

    @property
    def entries(self) -> list[StandIn]:
        """The lines, in the order in which they were first answered."""
        with self._lock:
            return list(self._entries.values())
