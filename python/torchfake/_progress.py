"""The progress of a long `torchfake run`: a line on standard error."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator

from torchfake.modes import fake_mode

#: Seconds before the first message, and between messages on a terminal and elsewhere.
SILENT_FOR = 10.0
EVERY_ON_TERMINAL = 1.0
EVERY_ELSEWHERE = 60.0

_GIB = 1 << 30


def describe(mode: fake_mode, seconds: float) -> str:
    """A description of a run in progress."""
    peaks = [mode.cards.allocated(index)[1] for index in range(len(mode.cards))]
    count = sum(entry.count for entry in mode.stand_ins.entries)
    parts = [f"{seconds:.0f} s"]
    if peaks:
        most = max(peaks)
        parts.append(f"peak {most / _GIB:.2f} GiB on cuda:{peaks.index(most)}")
    if count:
        parts.append(f"{count:,} stand-ins")
    return f"torchfake: {', '.join(parts)}"


@contextlib.contextmanager
def progress(mode: fake_mode, *, silent_for: float = SILENT_FOR) -> Iterator[None]:
    """Reports progress while entered: on a terminal in one line, removed at the end; in a file one line per minute."""
    ended = threading.Event()
    begin = time.perf_counter()
    stream = sys.stderr
    on_terminal = stream.isatty()
    every = EVERY_ON_TERMINAL if on_terminal else EVERY_ELSEWHERE

    def speak() -> None:
        wait = silent_for
        while not ended.wait(wait):
            wait = every
            line = describe(mode, time.perf_counter() - begin)
            with contextlib.suppress(ValueError, OSError):  # the program may have closed the stream
                stream.write(f"\r\033[K{line}" if on_terminal else f"{line}\n")
                stream.flush()
        if on_terminal and wait == every:
            with contextlib.suppress(ValueError, OSError):
                stream.write("\r\033[K")
                stream.flush()

    speaker = threading.Thread(target=speak, name="torchfake-progress", daemon=True)
    speaker.start()
    try:
        yield
    finally:
        ended.set()
        speaker.join()
