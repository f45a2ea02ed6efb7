"""Reports on memory: a table for the terminal, JSON, and one page of HTML."""

from __future__ import annotations

import dataclasses
import html
import itertools
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchfake import _C
    from torchfake._memory_tracking import Moment, Point

#: The version of what `Report.json` gives; changes with its meaning.
SCHEMA = 1

_BARS = "▁▂▃▄▅▆▇█"
_COLOURS = {
    "parameters": "#4269d0",
    "gradients": "#ff725c",
    "optimizer state": "#a463f2",
    "buffers": "#6cc5b0",
    "activations": "#efb118",
    "inputs": "#3ca951",
    "temporaries": "#9c6b4e",
    "workspaces": "#9498a0",
}


def size(nbytes: int) -> str:
    """A number of bytes for people: "1.50 GiB"."""
    value = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.2f} {unit}"
        value /= 1024
    return f"{value:.2f} TiB"


def sparkline(values: list[int], width: int = 60) -> str:
    """A line of bars, each the highest of its stretch of `values`."""
    if not values:
        return ""
    width = min(width, len(values))
    bounds = [i * len(values) // width for i in range(width + 1)]
    highest = [max(values[a:b]) for a, b in itertools.pairwise(bounds)]
    top = max(*highest, 1)
    return "".join(_BARS[min(len(_BARS) - 1, value * len(_BARS) // (top + 1))] for value in highest)


@dataclasses.dataclass(frozen=True)
class Report:
    """What a tracker found. `str()` is a table; `json()` and `html()` hold the same and more."""

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
                    "owners": moment.owners,
                    "modules": moment.by_module(),
                    "largest": [
                        {"nbytes": p.nbytes, "owner": p.owner, "op": p.op, "module": p.module, "phase": p.phase}
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
            fits = device["reserved"] <= device["total_memory"]
            verdict = "" if fits else f", needs {size(device['reserved'])} of {size(device['total_memory'])}"
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
        return "".join(_device_html(device) for device in self.data["devices"])

    def html(self) -> str:
        """One page without references to others."""
        return (
            "<!doctype html><html lang=en><meta charset=utf-8><title>Memory</title>"
            '<meta name=viewport content="width=device-width, initial-scale=1">'
            f"<style>{_STYLE}</style><main><h1>Memory</h1>{self._repr_html_()}</main></html>"
        )


_STYLE = """
:root { color-scheme: light dark; --ink: #1b1e23; --paper: #fff; --line: #d0d4da; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8ec; --paper: #16181d; --line: #3a3f47; } }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 1rem; }
svg { width: 100%; height: auto; border-bottom: 1px solid var(--line); }
table { border-collapse: collapse; width: 100%; margin: 1rem 0; font-variant-numeric: tabular-nums; }
td, th { padding: .25rem .5rem; border-bottom: 1px solid var(--line); text-align: left; overflow-wrap: anywhere; }
td.number { text-align: right; white-space: nowrap; }
.key { display: inline-block; width: .8em; height: .8em; margin-right: .4em; border-radius: 2px; }
"""


def _device_html(device: dict[str, Any]) -> str:
    owners = [owner for owner in _COLOURS if device["owners"].get(owner) or _ever(device, owner)]
    rows = "".join(
        f"<tr><td><span class=key style='background:{_COLOURS[owner]}'></span>{owner}"
        f"<td class=number>{size(device['owners'][owner])}"
        for owner in owners
    )
    modules = "".join(
        f"<tr><td>{html.escape(name) or '(outside of modules)'}<td class=number>{size(nbytes)}"
        for name, nbytes in list(device["modules"].items())[:20]
    )
    largest = "".join(
        f"<tr><td class=number>{size(p['nbytes'])}<td>{p['owner']}"
        f"<td>{html.escape(p['op'])}<td>{html.escape(p['module'])}"
        for p in device["largest"]
    )
    heading = f"{html.escape(device['device'])}: {size(device['peak'])} allocated, {size(device['reserved'])} reserved"
    return (
        f"<section><h2>{heading}, of {size(device['total_memory'])}</h2>{_chart(device, owners)}"
        f"<table><tr><th>At the peak<th>{rows}</table>"
        f"<table><tr><th>Module<th>{modules}</table>"
        f"<table><tr><th>Largest<th>Owner<th>Operator<th>Module{largest}</table></section>"
    )


def _ever(device: dict[str, Any], owner: str) -> bool:
    return any(point["owners"][owner] for point in device["timeline"])


def _chart(device: dict[str, Any], owners: list[str]) -> str:
    """The timeline, stacked by owner, with the phases marked."""
    points = device["timeline"]
    if len(points) < 2:
        return ""
    width, height = 900, 240
    top = max(sum(p["owners"].values()) for p in points) or 1
    base = [0] * len(points)
    parts = []
    for owner in owners:
        upper = [b + p["owners"][owner] for b, p in zip(base, points, strict=True)]
        up = [f"{i * width / (len(points) - 1):.1f},{height - y * height / top:.1f}" for i, y in enumerate(upper)]
        down = [f"{i * width / (len(points) - 1):.1f},{height - y * height / top:.1f}" for i, y in enumerate(base)]
        path = " ".join(up + down[::-1])
        parts.append(f"<polygon points='{path}' fill='{_COLOURS[owner]}'><title>{owner}</title></polygon>")
        base = upper
    last = None
    for i, point in enumerate(points):
        if point["phase"] != last:
            last = point["phase"]
            x = i * width / (len(points) - 1)
            parts.append(
                f"<line x1={x:.1f} x2={x:.1f} y1=0 y2={height} stroke='currentColor' stroke-opacity=.3></line>"
                f"<text x={x + 3:.1f} y=14 font-size=11 fill='currentColor'>{html.escape(last)}</text>"
            )
    return f"<svg viewBox='0 0 {width} {height}' role=img aria-label='memory by owner over time'>{''.join(parts)}</svg>"
