"""What the memory model and the tracking of owners cost: python benchmarks/memory.py

Times are medians over rounds in which all ways take turns, so that the machine's load falls on all alike. Bytes are
differences in resident memory of fresh processes.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import random
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from torchfake import _C, fake_mode, memory

HUGE = 1 << 50
STORAGES = 200_000  # live at once, where bytes are measured


def seconds(run: Callable[[], object]) -> float:
    begin = time.process_time()
    run()
    return time.process_time() - begin


# ---- Allocations a second --------------------------------------------------------------------------------------------


def allocations_per_second(count: int = 200_000, live: int = 1_000) -> float:
    """Blocks of 512 bytes to 64 MiB, with `live` of them at once; includes the calls from Python."""
    draw = random.Random(0)
    sizes = [int(2 ** draw.uniform(9, 26)) for _ in range(count)]
    victims = [draw.randrange(live) for _ in range(count)]
    model = _C.AllocatorModel(total=HUGE)
    blocks = [model.allocate(512) for _ in range(live)]

    def churn() -> None:
        for size, victim in zip(sizes, victims, strict=True):
            model.free(blocks[victim])
            blocks[victim] = model.allocate(size)

    churn()
    return count / min(seconds(churn) for _ in range(5))


# ---- Training steps --------------------------------------------------------------------------------------------------


class Layer(nn.Module):
    """A layer of Llama with the model's width, heads and inner width."""

    def __init__(self, width: int, heads: int, groups: int, inner: int) -> None:
        super().__init__()
        size = width // heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.o = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k, self.v = (nn.Linear(width, groups * size, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)
        self.size = size

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, c = x.shape
        h = self.norm1(x)
        q, k, v = (part(h).view(b, n, -1, self.size).transpose(1, 2) for part in (self.q, self.k, self.v))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).reshape(b, n, c))
        h = self.norm2(x)
        return x + self.down(nn.functional.silu(self.gate(h)) * self.up(h))


class Decoder(nn.Module):
    def __init__(self, layers: int, width: int, heads: int, groups: int, inner: int, vocabulary: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Layer(width, heads, groups, inner) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, ids: torch.Tensor) -> None:
    logits = model(ids)
    nn.functional.cross_entropy(logits.flatten(0, 1).float(), ids.flatten()).backward()
    optimizer.step()
    optimizer.zero_grad()


def step_seconds(kind: str, steps: int) -> float:
    """The fastest warm step: of a mode that counts live bytes, one with cards, and one that is tracked."""
    mode = fake_mode() if kind == "counted" else fake_mode(gpus="H200")
    with mode, memory.track() if kind == "tracked" else contextlib.nullcontext():
        model = Decoder(12, 768, 12, 4, 2048, 16384).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        ids = torch.randint(0, 16384, (2, 512), device="cuda")
        train(model, optimizer, ids)
        return min(seconds(lambda: train(model, optimizer, ids)) for _ in range(steps))


def tracking(rounds: int, steps: int) -> dict[str, float]:
    kinds = ("counted", "cards", "tracked")
    found: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(rounds):
        for kind in kinds:
            found[kind].append(step_seconds(kind, steps))
    return {kind: statistics.median(values) for kind, values in found.items()}


def counted_steps(kind: str, steps: int = 3) -> None:
    """Steps that callgrind counts, in a process of its."""
    torch.set_num_threads(1)
    mode = fake_mode() if kind == "counted" else fake_mode(gpus="H200")
    with mode, memory.track() if kind == "tracked" else contextlib.nullcontext():
        model = Decoder(12, 768, 12, 4, 2048, 16384).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        ids = torch.randint(0, 16384, (2, 512), device="cuda")
        for _ in range(4):
            train(model, optimizer, ids)
        gc.disable()
        for state in ("on", "off"):
            subprocess.run(["callgrind_control", f"--instr={state}", str(os.getpid())], check=True, capture_output=True)
            for _ in range(steps if state == "on" else 0):
                train(model, optimizer, ids)


def instructions(kind: str) -> int:
    """Of three steps: the same on a machine with other work."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={folder}/out"]
        command = ["valgrind", *options, sys.executable, __file__, "--inside", f"steps-{kind}"]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    found = re.search(r"I +refs: +([\d,]+)", done.stderr)
    assert found is not None, done.stderr
    return int(found[1].replace(",", ""))


# ---- In fresh processes ----------------------------------------------------------------------------------------------


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def bytes_of_storages(kind: str) -> float:
    mode = fake_mode() if kind == "counted" else fake_mode(gpus="H200", unlimited=True)
    with mode, memory.track() if kind == "tracked" else contextlib.nullcontext():
        torch.empty(1, device="cuda")
        kept: list[Any] = [None] * STORAGES
        before = resident()
        for i in range(STORAGES):
            kept[i] = torch.empty(1 << 20, device="cuda")
        return (resident() - before) / STORAGES


def llama() -> dict[str, float]:
    before, begin, cpu = resident(), time.perf_counter(), time.process_time()
    with fake_mode(gpus="H200", unlimited=True), memory.track() as tracked:
        model = Decoder(126, 16384, 128, 8, 53248, 128256).to("cuda", torch.bfloat16)
        optimizer = torch.optim.AdamW(model.parameters())
        train(model, optimizer, torch.randint(0, 128256, (1, 8192), device="cuda"))
        page = tracked.report().html()
    took, cpu = time.perf_counter() - begin, time.process_time() - cpu
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    return {"seconds": took, "cpu": cpu, "bytes": grown, "peak": tracked.peak, "page": len(page)}


def in_fresh_process(what: str) -> Any:
    done = subprocess.run([sys.executable, __file__, "--inside", what], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside is not None and options.inside.startswith("steps-"):
        counted_steps(options.inside.removeprefix("steps-"))
        return
    if options.inside is not None:
        print(json.dumps(llama() if options.inside == "llama" else bytes_of_storages(options.inside)))
        return
    print(f"{allocations_per_second() / 1e6:.2f} million allocations and frees a second")
    times = tracking(options.rounds, options.steps)
    for kind, value in times.items():
        print(f"a training step of 12 layers, {kind}: {1e3 * value:.2f} ms, {value / times['cards'] - 1:+.1%}")
    if shutil.which("valgrind") is not None:
        counts = {kind: instructions(kind) for kind in times}
        for kind, count in counts.items():
            print(f"the same in instructions, {kind}: {count / 3e6:.1f} million, {count / counts['cards'] - 1:+.1%}")
    counted = in_fresh_process("counted")
    for kind in ("counted", "cards", "tracked"):
        found = in_fresh_process(kind)
        print(f"a live storage with its tensor, {kind}: {found:.0f} bytes, {found - counted:+.0f}")
    found = in_fresh_process("llama")
    took = f"{found['seconds']:.2f} s ({found['cpu']:.2f} s of CPU), {found['bytes'] / 2**20:.0f} MiB"
    print(f"Llama-405B, a tracked step with its page: {took}; needs {found['peak'] / 2**30:.0f} GiB")


if __name__ == "__main__":
    main()
