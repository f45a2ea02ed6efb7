"""Compares the memory model with recordings of a real card, by workload (tests/memory).

PYTHONPATH=python python tools/compare_memory.py             # a table in Markdown
PYTHONPATH=python python tools/compare_memory.py --each      # the errors of every workload in percent
PYTHONPATH=python python tools/compare_memory.py --limits    # batch sizes within a limit: how many are judged right
PYTHONPATH=python python tools/compare_memory.py NAME        # every phase of one workload, in MiB
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import torch

import torchfake
from torchfake import memory

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "memory"))
from recordings import H200, LIMITS, RELEASE, SETS, has_published, recording

Phases = dict[str, list[int]]  # allocated, its peak, reserved, its peak

FAMILIES = {
    "recurrent": ("lstm", "gru_b", "translation_gru", "forecasting_gru", "elman", "speech"),
    "convolutions": (
        "resnet", "unet", "depthwise", "convolutions", "adversarial", "vgg", "convnext", "bottlenecks", "mobile",
        "segmentation", "autoencoder", "volumes", "efficient_net", "denoiser", "detection", "dense_connections",
        "gradient_penalty", "quantization", "video", "style", "resolution", "triplets", "atrous", "keywords", "views",
    ),
    "inference": ("inference", "prefill", "generation", "sampling", "decoding", "cache"),
}  # fmt: skip


def modelled(workload: Callable[..., None]) -> Phases:
    found: Phases = {}

    def phase(label: str) -> None:
        stats = memory.stats()
        kinds = [(kind, part) for kind in ("allocated", "reserved") for part in ("current", "peak")]
        found[label] = [stats[f"{kind}_bytes.all.{part}"] for kind, part in kinds]
        memory.reset_peak_stats()

    with torchfake.fake_mode():
        memory.attach(total_memory=H200, release=RELEASE, config="")
        workload(phase)
        phase("end")
    return found


def error(found: Phases, wanted: Phases, column: int) -> float:
    """The error of the maximum of a column, in percent."""
    highest = max(figures[column] for figures in wanted.values())
    return 100 * (max(figures[column] for figures in found.values()) - highest) / highest


def family(name: str) -> str:
    return next((title for title, parts in FAMILIES.items() if any(p in name for p in parts)), "other training")


def fits(run: Callable[[int], None], batch: int, limit: int) -> bool:
    with torchfake.fake_mode():
        memory.attach(total_memory=H200, release=RELEASE, config="")
        memory.set_per_process_memory_fraction(limit * 2**20 / H200)
        try:
            run(batch)
        except torch.OutOfMemoryError:
            return False
    return True


def judge_limits() -> None:
    for kind, (cases, name) in LIMITS.items():
        recorded, wrong = recording(name)["fits"], []
        for which, (run, limit, batches) in cases.items():
            for batch in batches:
                if fits(run, batch, limit) != recorded[which][str(batch)]:
                    wrong.append(f"{which} {batch}")
        count = sum(len(batches) for _, _, batches in cases.values())
        print(f"{kind}: {count - len(wrong)} of {count} right; wrong: {', '.join(wrong) or 'none'}")


def print_phases(found: Phases, wanted: Phases) -> None:
    for label, figures in wanted.items():
        pairs = (f"{a / 2**20:10.2f} of {b / 2**20:9.2f}" for a, b in zip(found[label], figures, strict=True))
        print(f"{label:16}", *pairs)


def print_table(groups: dict[tuple[str, str], list[tuple[float, float]]]) -> None:
    print("| workloads | | count | peak: median | peak: worst | reserved: median | reserved: worst |")
    print("|---|---|---|---|---|---|---|")
    order = list(SETS)
    for (kind, title), pairs in sorted(groups.items(), key=lambda item: (order.index(item[0][0]), item[0][1])):
        peaks, reserved = zip(*pairs, strict=True)
        figures = [statistics.median(peaks), max(peaks), statistics.median(reserved), max(reserved)]
        print(f"| {kind} | {title} | {len(pairs)} |", " | ".join(f"{x:.2f} %" for x in figures), "|")


def main() -> None:
    option = sys.argv[1] if sys.argv[1:] else ""
    if option == "--limits":
        judge_limits()
        return
    groups: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for kind, (programs, recorded) in SETS.items():
        if kind == "published" and not has_published():
            continue
        for name, entry in recording(recorded)["workloads"].items():
            if option not in ("", "--each", name):
                continue
            wanted = {label: figures for label, *figures in entry["phases"]}
            found = modelled(programs[name])
            errors = error(found, wanted, 1), error(found, wanted, 3)
            if option == name:
                print_phases(found, wanted)
            elif option:
                print(f"{kind:8} {name:30} peak {errors[0]:+7.2f} %  reserved {errors[1]:+7.2f} %")
            for title in (family(name), "all"):
                groups.setdefault((kind, title), []).append((abs(errors[0]), abs(errors[1])))
    if option in ("", "--each"):
        print_table(groups)


if __name__ == "__main__":
    main()
