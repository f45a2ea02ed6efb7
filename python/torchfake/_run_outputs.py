"""The memory files that `torchfake run` writes besides its report (page, snapshot, trace), all from one tracker."""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchfake._memory_page import page_of
from torchfake._memory_tracking import Piece, Tracker
from torchfake._step_time_page import section_of


@dataclass(frozen=True)
class Outputs:
    """The requested files.

    Attributes:
        html: A page showing where the memory goes.
        snapshot: A file for PyTorch's memory viewer.
        trace: A Chrome trace of allocated bytes by owner.
    """

    html: Path | None = None
    snapshot: Path | None = None
    trace: Path | None = None

    @property
    def need_tracking(self) -> bool:
        """Whether any of them needs owners."""
        return (self.html or self.snapshot or self.trace) is not None

    def write(self, report: dict[str, Any], tracker: Tracker) -> None:
        """Writes the files. `report` is that of the run, with the tracker's under "memory"."""
        if self.html is not None:
            more = section_of(report["step_time"]) if "step_time" in report else ""
            self.html.write_text(page_of(report["memory"], report, more), encoding="utf-8")
        if self.snapshot is not None:
            self.snapshot.write_bytes(pickle.dumps(snapshot_of(tracker)))
        if self.trace is not None:
            self.trace.write_text(json.dumps(chrome_trace_of(tracker)))


def _frames(piece: Piece) -> list[dict[str, Any]]:
    """The stack shown by the viewer: operator, module, and the program's line if lines are recorded."""
    frames = [{"name": piece.op or piece.owner, "filename": f"owner: {piece.owner}", "line": 0}]
    if piece.module:
        frames.append({"name": piece.module, "filename": "module", "line": 0})
    for file, line in piece.stack or ([(piece.file, piece.line)] if piece.file else []):
        frames.append({"name": piece.phase or "program", "filename": file, "line": line})
    return frames


def snapshot_of(tracker: Tracker) -> dict[str, Any]:
    """The history of allocations in the format of `torch.cuda.memory._snapshot()`. Times are event numbers."""
    events: list[tuple[int, str, Piece]] = []
    for piece in tracker.pieces:
        events.append((piece.born, "alloc", piece))
        if piece.died != -1:
            events.append((piece.died, "free_completed", piece))
    events.sort(key=lambda event: event[0])
    devices = [name for name in tracker.devices if name.startswith("cuda:")]
    count = max((int(name.partition(":")[2]) + 1 for name in devices), default=1)
    traces: list[list[dict[str, Any]]] = [[] for _ in range(count)]
    for time, action, piece in events:
        if piece.device in devices:
            traces[int(piece.device.partition(":")[2])].append(
                {
                    "action": action,
                    "addr": piece.address,
                    "size": piece.nbytes,
                    "stream": 0,
                    "time_us": time,
                    "frames": _frames(piece),
                }
            )
    return {
        "segments": [segment for name in devices for segment in tracker.model.segments(name)],
        "device_traces": traces,
        "allocator_settings": {},
        "external_annotations": [],
    }


def chrome_trace_of(tracker: Tracker) -> dict[str, Any]:
    """Counters by owner and spans of phases, for chrome://tracing and Perfetto. One microsecond is one event."""
    events: list[dict[str, Any]] = []
    for number, name in enumerate(tracker.devices):
        events.append({"ph": "M", "name": "process_name", "pid": number, "args": {"name": name}})
        points = tracker.timeline_of(name)
        for point in points:
            events.append({"ph": "C", "name": "allocated", "pid": number, "ts": point.event, "args": point.owners})
        begin = 0
        for index, point in enumerate(points):
            is_last = index + 1 == len(points)
            if is_last or points[index + 1].phase != point.phase:
                first = points[begin].event
                span = {"ph": "X", "name": point.phase or "outside", "pid": number, "tid": 1, "ts": first}
                events.append({**span, "dur": max(point.event - first, 1)})
                begin = index + 1
    return {"traceEvents": events, "displayTimeUnit": "ms"}
