"""Compares the memory model with recordings of a real card, by workload (tests/memory).

PYTHONPATH=python python tools/compare_memory.py          # a table in Markdown
PYTHONPATH=python python tools/compare_memory.py NAME     # every phase of one workload, in MiB
"""

from __future__ import annotations

import gzip
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torchfake
from torchfake import memory

HERE = Path(__file__).parents[1] / "tests" / "memory"
sys.path.insert(0, str(HERE))
from held_out import HELD_OUT  # noqa: E402
from workloads import WORKLOADS  # noqa: E402

Phases = dict[str, list[int]]  # allocated, its peak, reserved, its peak

FAMILIES = {
    "recurrent": ("lstm", "gru_b"),
    "convolutions": ("resnet", "unet", "depthwise", "convolutions", "adversarial"),
    "inference": ("inference", "prefill", "generation"),
}


def recording(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(gzip.decompress((HERE / "recorded" / f"{name}.json.gz").read_bytes()))
    return found


def modelled(workload: Callable[..., None], total: int, release: int) -> Phases:
    found: Phases = {}

    def phase(label: str) -> None:
        stats = memory.stats()
        kinds = [(kind, part) for kind in ("allocated", "reserved") for part in ("current", "peak")]
        found[label] = [stats[f"{kind}_bytes.all.{part}"] for kind, part in kinds]
        memory.reset_peak_stats()

    with torchfake.fake_mode():
        memory.attach(total_memory=total, release=release, config="")
        workload(phase)
        phase("end")
    return found


def error(found: Phases, wanted: Phases, column: int) -> float:
    """The error of the maximum of a column, in percent."""
    highest = max(figures[column] for figures in wanted.values())
    return 100 * (max(figures[column] for figures in found.values()) - highest) / highest


def family(name: str) -> str:
    return next((title for title, parts in FAMILIES.items() if any(p in name for p in parts)), "other training")


def main() -> None:
    recorded, others = recording("workloads"), recording("held_out")
    release, total = int(recorded["torch"].split(".")[1]), others["total_memory"]
    groups: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for kind, workloads, phases in (
        ("fitted", WORKLOADS, recorded["workloads"]),
        ("held out", HELD_OUT, others["workloads"]),
    ):
        for name, workload in workloads.items():
            if sys.argv[1:] not in ([], [name]):
                continue
            wanted = {label: figures for label, *figures in phases[name]["phases"]}
            found = modelled(workload, total, release)
            errors = error(found, wanted, 1), error(found, wanted, 3)
            if sys.argv[1:]:
                for label, figures in wanted.items():
                    pairs = (
                        f"{a / 2**20:10.2f} of {b / 2**20:9.2f}" for a, b in zip(found[label], figures, strict=True)
                    )
                    print(f"{label:16}", *pairs)
            for title in (family(name), "all"):
                groups.setdefault((kind, title), []).append((abs(errors[0]), abs(errors[1])))
    if not sys.argv[1:]:
        print("| workloads | | count | peak: median | peak: worst | reserved: median | reserved: worst |")
        print("|---|---|---|---|---|---|---|")
        for (kind, title), pairs in sorted(groups.items()):
            peaks, reserved = zip(*pairs, strict=True)
            figures_of = [statistics.median(peaks), max(peaks), statistics.median(reserved), max(reserved)]
            print(f"| {kind} | {title} | {len(pairs)} |", " | ".join(f"{x:.2f} %" for x in figures_of), "|")


if __name__ == "__main__":
    main()
