"""C++ alone: builds benchmarks/cpp against the installed package, runs it, and pairs what it measured."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import torch

import torchfake
from torchfake_bench.report import Report, console, new_table, number, ratio
from torchfake_bench.timing import geometric_mean

SOURCES = Path(__file__).parent.parent / "cpp"
PACKAGE = Path(torchfake.cmake_prefix_path) / "torchfake"
BUILD = Path(__file__).parent.parent.parent / "build" / "bench"


def why_not() -> str | None:
    """What is missing for building the program, or None."""
    if not (PACKAGE / "torchfakeConfig.cmake").exists():
        return "torchfake's C++ package is not installed; `bash run build` installs it"
    if shutil.which("cmake") is None:
        return "cmake is not there; `pip install cmake ninja` installs it"
    return None


def build() -> Path:
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    configure = [
        "cmake",
        "-S",
        str(SOURCES),
        "-B",
        str(BUILD),
        *generator,
        "-DCMAKE_BUILD_TYPE=Release",
        f"-Dtorchfake_DIR={PACKAGE}",  # named, so that a build folder follows when torchfake moves
        f"-DTORCHFAKE_TORCH_DIR={Path(torch.__file__).parent}",
    ]
    for command in (configure, ["cmake", "--build", str(BUILD)]):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError((done.stderr or done.stdout).strip())
    return BUILD / "torchfake_benchmarks"


def measure(program: Path, rounds: int) -> list[dict[str, Any]]:
    """CPU nanoseconds of each case, real and fake: medians over rounds that Google Benchmark shuffles."""
    output = subprocess.run(
        [
            str(program),
            f"--benchmark_repetitions={rounds}",
            "--benchmark_enable_random_interleaving=true",
            "--benchmark_min_time=0.02",
            "--benchmark_format=json",
        ],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    rows: dict[str, dict[str, Any]] = {}
    for entry in sorted(json.loads(output)["benchmarks"], key=lambda entry: entry["family_index"]):
        side, name = entry["run_name"].split("/", 1)
        row = rows.setdefault(name, {"op": name, "real": None, "fake": None})
        if entry.get("error_occurred"):
            row[f"{side} error"] = entry["error_message"]
        elif entry.get("aggregate_name", "median" if rounds == 1 else "") == "median":
            row[side] = entry["cpu_time"]
    return list(rows.values())


def run(report: Report) -> None:
    reason = why_not()
    if reason is None:
        try:
            program = build()
        except RuntimeError as error:
            reason = f"the program does not build (libbenchmark-dev has Google Benchmark):\n{error}"
    if reason is not None:
        console.print(f"[yellow]cpp: skipped, {reason}")
        report.results["cpp"] = {"skipped": reason}
        return
    rows = measure(program, report.rounds)
    table = new_table("C++ only: nanoseconds a call", "op", "fake, hit", "real 16x16", "real / fake")
    for row in rows:
        table.add_row(row["op"], number(row["fake"], 4), number(row["real"], 4), ratio(row["real"], row["fake"]))
    console.print(table)
    ratios = [row["real"] / row["fake"] for row in rows if row["real"] is not None and row["fake"] is not None]
    below = sum(value > 1 for value in ratios) / len(ratios)
    mean = geometric_mean(ratios)
    console.print(f"Geometric mean {mean:.2f}x; {below:.0%} of the ops below the real one.\n")
    report.results["cpp"] = {"rows": rows, "geometric mean": mean, "share below real": below}
