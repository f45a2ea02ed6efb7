"""`torchfake report a.json b.json`: the changes in memory between two runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from torchfake._memory_report import size


class NotAReportError(ValueError):
    """A file is not a report of `torchfake run --json` or `Report.json`."""


def load_report(path: Path) -> dict[str, Any]:
    """The devices of a report, by name: of all ranks, with the first of the ranks that are alike.

    Raises:
        NotAReportError: The file cannot be read, or is not a report.
    """
    try:
        data = json.loads(path.read_text())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise NotAReportError(f"{path}: no JSON: {error}" if isinstance(error, ValueError) else str(error)) from None
    if isinstance(data, dict) and isinstance(data.get("roles"), list):
        roles = [role for role in data["roles"] if isinstance(role, dict) and role.get("ranks")]
        return {
            f"rank {role['ranks'][0]}, {name}": device
            for role in roles
            for name, device in _devices_of(path, role.get("report")).items()
        }
    return _devices_of(path, data)


def _devices_of(path: Path, data: Any) -> dict[str, Any]:
    memory = data.get("memory", data) if isinstance(data, dict) else {}
    if not isinstance(memory, dict) or not isinstance(memory.get("devices"), list):
        raise NotAReportError(
            f"{path}: expected the JSON of a tracked run: torchfake run --track --json FILE, or t.report().json()"
        )
    devices = memory["devices"]
    if not all(isinstance(device, dict) and isinstance(device.get("device"), str) for device in devices):
        raise NotAReportError(f"{path}: a device without a name")
    return {device["device"]: device for device in devices}


def compare(before: dict[str, Any], after: dict[str, Any]) -> list[dict[str, Any]]:
    """The differences, as rows: device, what, name, bytes before and after. Peaks are always included."""
    rows = []
    for name in dict.fromkeys([*before, *after]):
        one, other = before.get(name, {}), after.get(name, {})
        for key in ("peak", "reserved"):
            rows.append((name, key, "", one.get(key, 0), other.get(key, 0)))
        for kind in ("owners", "modules"):
            left, right = one.get(kind, {}), other.get(kind, {})
            changed = [key for key in dict.fromkeys([*left, *right]) if left.get(key, 0) != right.get(key, 0)]
            changed.sort(key=lambda key: -abs(right.get(key, 0) - left.get(key, 0)))
            rows += [(name, kind[:-1], key, left.get(key, 0), right.get(key, 0)) for key in changed]
    return [
        {"device": device, "what": what, "name": key, "before": first, "after": second}
        for device, what, key, first, second in rows
    ]


def comparison_table(rows: list[dict[str, Any]], most: int = 40) -> Table:
    """A table of the differences."""
    table = Table(header_style="bold")
    for title in ("device", "what", "name"):
        table.add_column(title, overflow="fold")
    for title in ("before", "after", "change"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in rows[:most]:
        change = row["after"] - row["before"]
        sign = "+" if change > 0 else "-" if change < 0 else ""
        # Text: names come from the program, and may look like markup.
        table.add_row(
            Text(row["device"]),
            row["what"],
            Text(row["name"] or ("(outside of modules)" if row["what"] == "module" else "")),
            size(row["before"]),
            size(row["after"]),
            f"{sign}{size(abs(change))}" if change else "=",
        )
    return table
