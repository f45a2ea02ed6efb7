"""Writes the figures of benchmarks/README.md from the JSON file of a run.

python benchmarks/figures.py [build/benchmarks.json]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))

from generate_conformance import BEGIN, END, row, with_figures
from provenance import ROOT, mark, sentence

PAGE = Path(__file__).with_name("README.md")
LOWEST = 12


def goals(report: dict[str, Any]) -> list[str]:
    lines = [row("goal", "wanted", "measured", "reached"), "|---|---|---|---|"]
    for goal in report["goals"]:
        lines.append(row(goal["name"], goal["wanted"], goal["measured"], "yes" if goal["reached"] else "**no**"))
    return lines


def everyday(found: dict[str, Any]) -> list[str]:
    """The mix in one table, and its lowest operators in another."""
    lines = ["### The everyday mix", "", row("", ""), "|---|---|"]
    lines += [row(name, f"{value:.3g}") for name, value in found["summary"].items()]
    lines += ["", f"The {LOWEST} operators with the lowest ratio, in microseconds:", ""]
    lines += [
        row("op", "torchfake", "without values", "operators", "FakeTensorMode", "real", "ratio"),
        "|---" * 7 + "|",
    ]
    compared = [r for r in found["rows"] if r["torchfake"] and r["FakeTensorMode"]]
    for r in sorted(compared, key=lambda r: r["FakeTensorMode"] / r["torchfake"])[:LOWEST]:
        times = [r["torchfake"], r["torchfake without values"], r["FakeTensorMode"], r["real"]]
        ours, without, peer, real = ("-" if time is None else f"{time:.3g}" for time in times)
        ratio = f"{r['FakeTensorMode'] / r['torchfake']:.0f}x"
        lines.append(row(r["op"], ours, without, str(r.get("torchfake hits", "-")), peer, real, ratio))
    return lines


def figures(report: dict[str, Any]) -> str:
    source = report["provenance"]
    parts = [BEGIN, mark(source["commit"]), "", f"{sentence(source)} The median of {report['rounds']} rounds.", ""]
    parts += goals(report)
    if "everyday" in report["results"]:
        parts += ["", *everyday(report["results"]["everyday"])]
    return "\n".join([*parts, "", END])


def main() -> None:
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "benchmarks.json"
    PAGE.write_text(with_figures(PAGE.read_text(), figures(json.loads(file.read_text()))))


if __name__ == "__main__":
    main()
