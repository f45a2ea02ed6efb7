"""What `torchfake run` costs over the same program in `fake_mode()`: python benchmarks/run_overhead.py

The program trains a small transformer for some steps. It runs in turns as `torchfake run` runs it and inside the mode,
in this process, so that the machine's load falls on all alike; the medians are compared.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from torchfake import fake_mode
from torchfake.run_program import Program, run_program

PROGRAM = """
import torch
from torch import nn

layers = [nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True) for _ in range(6)]
model = nn.Sequential(*layers, nn.Linear(512, 1000)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(STEPS):
    x = torch.randn(16, 128, 512, device="cuda")
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def seconds(run: Callable[[], object]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    text = PROGRAM.replace("STEPS", str(options.steps))
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "train.py"
        script.write_text(text)
        code = compile(text, str(script), "exec")

        def inside(mode: fake_mode) -> None:
            with mode:
                exec(code, {"__name__": "__main__"})

        ways: dict[str, Callable[[], object]] = {
            "fake_mode()": lambda: inside(fake_mode()),
            'fake_mode(gpus="H200")': lambda: inside(fake_mode(gpus="H200")),
            "torchfake run": lambda: run_program(
                Program(str(script), False), fake_mode(gpus="H200", unknown="stand-in"), quiet=True
            ),
        }
        times: dict[str, list[float]] = {name: [] for name in ways}
        for run in ways.values():
            run()  # fills the cache
        for _ in range(options.rounds):
            for name, run in ways.items():
                times[name].append(seconds(run))
    medians = {name: statistics.median(each) for name, each in times.items()}
    of_run = medians["torchfake run"]
    report = {
        "torch": torch.__version__,
        "seconds": medians,
        "over_plain_mode": of_run / medians["fake_mode()"] - 1,
        "over_mode_with_cards": of_run / medians['fake_mode(gpus="H200")'] - 1,
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
