"""What an operator of a warm forward and backward costs in instructions and cache misses, as layers multiply.

    python benchmarks/profile_layers.py     # needs valgrind; a minute or two

The models are those of `run.py growth`. Callgrind counts between two calls of `callgrind_control`; the last cache that
it simulates is of the size that a core has to itself.
"""

from __future__ import annotations

import gc
import os
import re
import shutil
import subprocess
import sys
import tempfile

import torch
from rich.progress import track
from torchfake_bench.growth import LAYERS, count_ops, deep_model
from torchfake_bench.report import console, new_table

import torchfake

OPERATORS = 18_000  # about as many for each depth
CACHE = "1048576,8,64"  # bytes, ways, bytes of a line
COUNTS = {
    "instructions": r"I +refs: +([\d,]+)",
    "reads and writes of data": r"D +refs: +([\d,]+)",
    "of these, missed in the first cache": r"D1 +misses: +([\d,]+)",
    f"and in one of {CACHE.partition(',')[0]} bytes": r"LLd misses: +([\d,]+)",
}


def run_counted(layers: int) -> None:
    """In a process of callgrind's: prints how many operators were counted."""
    torch.set_num_threads(1)
    with torchfake.fake_mode():
        model, x = deep_model(layers), torch.rand(8, 64)

        def run() -> None:
            model.zero_grad()
            model(x).sum().backward()

        run()
        operators = count_ops(run)
        repeats = max(1, OPERATORS // operators)
        gc.disable()
        count("on")
        for _ in range(repeats):
            run()
        count("off")
    print(operators * repeats)


def count(state: str) -> None:
    subprocess.run(["callgrind_control", f"--instr={state}", str(os.getpid())], check=True, capture_output=True)


def profile(layers: int) -> dict[str, float]:
    """Counts per operator."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["--cache-sim=yes", f"--LL={CACHE}", "--instr-atstart=no", f"--callgrind-out-file={folder}/out"]
        command = ["valgrind", "--tool=callgrind", *options, sys.executable, __file__, str(layers)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    operators = int(done.stdout)
    found = {what: re.search(pattern, done.stderr) for what, pattern in COUNTS.items()}
    return {what: int(match[1].replace(",", "")) / operators for what, match in found.items() if match}


def main() -> int:
    if len(sys.argv) > 1:
        run_counted(int(sys.argv[1]))
        return 0
    if shutil.which("valgrind") is None:
        console.print("valgrind is not installed; on Debian: apt-get install valgrind")
        return 1
    profiles = [profile(layers) for layers in track(LAYERS, "Counting", console=console)]
    table = new_table("Per operator of a warm forward and backward", "", *(f"{layers:,} layers" for layers in LAYERS))
    for what in COUNTS:
        table.add_row(what, *(f"{each[what]:,.1f}" for each in profiles))
    console.print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
