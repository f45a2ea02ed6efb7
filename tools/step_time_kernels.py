"""The kernels of a call under PyTorch's profiler, with their operators. Needs PyTorch alone."""

from __future__ import annotations

import bisect
import json
from collections.abc import Callable
from typing import Any

import torch


class Kernels:
    """The kernels of a profiled call, in order, and a table of their names and operators."""

    def __init__(self, events: list[Any]) -> None:
        operators = {
            e.correlation_id(): e
            for e in events
            if e.linked_correlation_id() == 0 and "CPU" in str(e.device_type()) and not e.name().startswith("cu")
        }
        self.launches = sorted(
            (e for e in events if "CUDA" in str(e.device_type()) and not e.is_user_annotation()),
            key=lambda e: e.start_ns(),
        )
        self.calls: dict[str, int] = {}
        for e in events:
            name = e.name()
            if name.startswith(("cuda", "cuLaunch")) and "CPU" in str(e.device_type()):
                self.calls[name] = self.calls.get(name, 0) + 1
        self._operators = operators
        self._table: dict[str, int] = {}

    def key_of(self, kernel: Any) -> int:
        operator = self._operators.get(kernel.linked_correlation_id())
        described: list[Any] = [kernel.name()[:70]]
        if operator is not None:
            described += [operator.name(), operator.shapes(), operator.dtypes()]
        text = json.dumps(described, separators=(",", ":"), default=str)
        return self._table.setdefault(text, len(self._table))

    @property
    def table(self) -> list[Any]:
        return [json.loads(text) for text in self._table]


def profiler() -> torch.profiler.profile:
    """A profiler of the host and, where there is one, of the card."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if torch.profiler.ProfilerActivity.CUDA in torch.profiler.supported_activities():
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    return torch.profiler.profile(activities=activities, record_shapes=True)


def events_of(profile: torch.profiler.profile) -> list[Any]:
    """The events of a finished profile."""
    assert profile.profiler is not None and profile.profiler.kineto_results is not None
    return list(profile.profiler.kineto_results.events())


def profiled(run: Callable[[], Any]) -> list[Any]:
    """The events of a call."""
    with profiler() as profile:
        run()
        torch.cuda.synchronize()
    return events_of(profile)


def described(events: list[Any], is_full: bool) -> dict[str, Any]:
    """Seconds in kernels, and each kernel as [row of the table, begin, microseconds]; sums if the file is full."""
    kernels = Kernels(events)
    start = kernels.launches[0].start_ns() if kernels.launches else 0
    rows = [
        [kernels.key_of(e), round((e.start_ns() - start) / 1e3, 1), round(e.duration_ns() / 1e3, 2)]
        for e in kernels.launches
    ]
    busy = sum(row[2] for row in rows)
    found = {"busy": busy / 1e6, "kernels": len(rows), "runtime": kernels.calls, "events": len(events)}
    if is_full:
        sums: dict[int, list[float]] = {}
        for key, _, duration in rows:
            each = sums.setdefault(key, [0, 0.0])
            each[0] += 1
            each[1] += duration
        return found | {"table": kernels.table, "sums": [[key, n, round(us, 2)] for key, (n, us) in sums.items()]}
    return found | {"table": kernels.table, "rows": rows}


def by_case(events: list[Any]) -> list[Any]:
    """[case, [[kernel, operator, shapes, dtypes, launches, microseconds of all]]], by when kernels ran."""
    marks = sorted(
        (e.start_ns(), e.name()) for e in events if e.name().startswith("case:") and "CPU" in str(e.device_type())
    )
    begins = [begin for begin, _ in marks]
    kernels = Kernels(events)
    found: dict[str, dict[int, list[float]]] = {name: {} for _, name in marks}
    for e in kernels.launches:
        at = bisect.bisect_right(begins, e.start_ns()) - 1
        if at >= 0:
            each = found[marks[at][1]].setdefault(kernels.key_of(e), [0, 0.0])
            each[0] += 1
            each[1] += e.duration_ns() / 1e3
    table = kernels.table
    return [
        [name, [[*table[key], count, round(us, 2)] for key, (count, us) in sums.items()]]
        for name, sums in found.items()
    ]
