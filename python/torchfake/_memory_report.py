"""Memory reports: a table for the terminal, JSON, and an HTML page."""

from __future__ import annotations

import dataclasses
import itertools
import json
from typing import TYPE_CHECKING, Any

from torchfake._memory_page import fragment_of, page_of, size

if TYPE_CHECKING:
    from torchfake import _C
    from torchfake._memory_tracking import Moment, Point

#: The schema version of `Report.json`; incremented when its meaning changes.
SCHEMA = 1

__all__ = ["Report", "size", "sparkline"]

_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: list[int], width: int = 60) -> str:
    """A line of bars, each showing the maximum of an interval of `values`."""
    if not values:
        return ""
    width = min(width, len(values))
    bounds = [i * len(values) // width for i in range(width + 1)]
    highest = [max(values[a:b]) for a, b in itertools.pairwise(bounds)]
    top = max(*highest, 1)
    return "".join(_BARS[min(len(_BARS) - 1, value * len(_BARS) // (top + 1))] for value in highest)


@dataclasses.dataclass(frozen=True)
class Report:
    """The result of a tracker. `str()` gives a table; `json()` and `html()` contain the same and more."""

    data: dict[str, Any]

    @classmethod
    def of(cls, moments: dict[str, Moment], timelines: dict[str, list[Point]], model: _C.MemoryModel) -> Report:
        devices = []
        for name, moment in moments.items():
            free, total = model.memory_info(name)
            devices.append(
                {
                    "device": name,
                    "total_memory": total,
                    "free_memory": free,
                    "peak": moment.total,
                    "reserved": model.stats(name)["reserved_bytes"]["all"]["peak"],
                    "needed": moment.total + model.context_bytes,
                    "owners": moment.owners,
                    "modules": moment.by_module(),
                    "largest": [
                        {
                            "nbytes": p.nbytes,
                            "owner": p.owner,
                            "op": p.op,
                            "module": p.module,
                            "phase": p.phase,
                            "file": p.file,
                            "line": p.line,
                        }
                        for p in moment.largest(20)
                    ],
                    "timeline": [{"event": p.event, "phase": p.phase, "owners": p.owners} for p in timelines[name]],
                }
            )
        current, peak = model.host_bytes()
        return cls({"schema": SCHEMA, "devices": devices, "host": {"current": current, "peak": peak}})

    def json(self, indent: int | None = None) -> str:
        """Everything, as JSON: {"schema", "devices": [{"device", "peak", "owners", ...}], "host"}."""
        return json.dumps(self.data, indent=indent)

    def __str__(self) -> str:
        lines = []
        for device in self.data["devices"]:
            fits = device["needed"] <= device["total_memory"]
            verdict = "" if fits else f", needs {size(device['needed'])} of {size(device['total_memory'])}"
            peak, reserved = size(device["peak"]), size(device["reserved"])
            lines.append(f"{device['device']}: peak {peak} allocated, {reserved} reserved{verdict}")
            lines.append("  " + sparkline([sum(p["owners"].values()) for p in device["timeline"]]))
            for owner, nbytes in sorted(device["owners"].items(), key=lambda item: -item[1]):
                if nbytes:
                    lines.append(f"  {owner:<16} {size(nbytes):>12} {nbytes / max(device['peak'], 1):>7.1%}")
        host = self.data["host"]
        if host["peak"]:
            lines.append(f"host: peak {size(host['peak'])}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return fragment_of(self.data)

    def html(self) -> str:
        """A self-contained page."""
        return page_of(self.data)
