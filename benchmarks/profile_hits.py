"""How many of the instructions of a cache hit are the engine's, for the operators of the everyday mix.

    python benchmarks/profile_hits.py [OPERATOR ...]     # needs valgrind; a few minutes

Callgrind counts between two calls of `callgrind_control`, on any machine and beside any other work. The rest of a hit
is Python's, and PyTorch's parsing of arguments, dispatcher and autograd: what a hit takes if the engine takes nothing.
"""

from __future__ import annotations

import gc
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from profile_layers import count
from torchfake_bench.everyday_ops import OPS, Inputs
from torchfake_bench.report import console, new_table

import torchfake

CALLS = 500
#: Where a call enters the engine: unboxed, or as a composite operator of which the engine has a kernel.
ENTRY = re.compile(r"torchfake::UnboxedKernel<.*operator\(\)")
COST = re.compile(r" *([\d,]+) \(")


def run_counted(names: list[str]) -> None:
    """In a process of callgrind's, which writes a file for each operator, and one for no operator."""
    torch.set_num_threads(1)
    with torchfake.fake_mode():
        inputs = Inputs()
        gc.disable()
        for function in [lambda _: None, *(OPS[name] for name in names)]:
            for _ in range(3):
                function(inputs)
            count("on")
            for _ in range(CALLS):
                function(inputs)
            count("off")
            subprocess.run(["callgrind_control", "--dump", str(os.getpid())], check=True, capture_output=True)


def instructions(counted: Path) -> tuple[int, int]:
    """All instructions of a file, and those below the engine's kernels."""
    shown = ["callgrind_annotate", "--threshold=100", "--inclusive=yes", str(counted)]
    lines = subprocess.run(shown, check=True, capture_output=True, text=True).stdout.splitlines()
    costs = [(int(found[1].replace(",", "")), line) for line in lines if (found := COST.match(line))]
    whole = next(cost for cost, line in costs if "PROGRAM TOTALS" in line)
    return whole, sum(cost for cost, line in costs if ENTRY.search(line))


def profile(names: list[str]) -> list[tuple[str, float, float]]:
    """For each operator, instructions a call: all, and the engine's."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["--instr-atstart=no", f"--callgrind-out-file={folder}/out"]
        command = ["valgrind", "--tool=callgrind", *options, sys.executable, __file__, "--counted", *names]
        subprocess.run(command, check=True, capture_output=True)
        counted = [instructions(Path(f"{folder}/out.{i + 1}")) for i in range(len(names) + 1)]
    loop = counted[0][0]
    return [
        (name, (whole - loop) / CALLS, engine / CALLS) for name, (whole, engine) in zip(names, counted[1:], strict=True)
    ]


def main() -> int:
    if sys.argv[1:2] == ["--counted"]:
        run_counted(sys.argv[2:])
        return 0
    if shutil.which("valgrind") is None:
        console.print("valgrind is not installed; on Debian: apt-get install valgrind")
        return 1
    profiles = profile(sys.argv[1:] or list(OPS))
    table = new_table("Instructions of a hit", "op", "in all", "the engine's", "share")
    for name, whole, engine in sorted(profiles, key=lambda each: each[2] / each[1]):
        table.add_row(name, f"{whole:,.0f}", f"{engine:,.0f}", f"{engine / whole:.0%}")
    console.print(table)
    rest = math.exp(sum(math.log(1 - engine / whole) for _, whole, engine in profiles) / len(profiles))
    console.print(f"Geometric mean of what is not the engine's: {rest:.0%} of a hit.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
