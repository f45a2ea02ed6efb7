"""The clock: the process's CPU time, with the garbage collector off while it runs.

Everything measured computes on one thread and waits for nothing, so on an idle machine CPU time is wall time; on a busy
one it leaves out the time that neighbours had.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator

#: What one timed loop should take; long against the clock's resolution, short against a neighbour's time slice.
LOOP_SECONDS = 0.002


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def seconds(call: Callable[[], object]) -> float:
    """What one call takes."""
    with no_garbage_collection():
        start = time.process_time()
        result = call()
        end = time.process_time()
    del result  # after the clock has stopped
    return end - start


def loop_seconds(call: Callable[[], object], repeats: int) -> float:
    """What `repeats` calls take, the death of their results included."""
    with no_garbage_collection():
        start = time.process_time()
        for _ in itertools.repeat(None, repeats):
            call()
        return time.process_time() - start


def repeats_for(call: Callable[[], object]) -> int:
    """How many calls fill one timed loop."""
    repeats = 1
    while (taken := loop_seconds(call, repeats)) < LOOP_SECONDS / 4:
        repeats *= 4
    return max(1, round(repeats * LOOP_SECONDS / taken))


def median(values: Iterable[float]) -> float:
    return statistics.median(values)


def geometric_mean(values: Iterable[float]) -> float:
    """NaN where there are no values."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan
