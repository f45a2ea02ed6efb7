"""Real tensors: what their operators and methods cost while torchfake is active, as a ratio of the cost without it."""

from __future__ import annotations

import gc
import timeit
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from rich.progress import track

import torchfake
from torchfake import _C
from torchfake_bench.report import Report, console, new_table, number
from torchfake_bench.timing import no_garbage_collection

WANTED = 1.05
CALLS = 5_000

SMALL, MATRIX, HEADS = torch.ones(4), torch.ones(4, 4), torch.ones(1, 1, 4, 4)

CASES: dict[str, Callable[[], Any]] = {
    "x + x": lambda: SMALL + SMALL,
    "x[0].item()": lambda: SMALL[0].item(),
    "x.numpy()": lambda: SMALL.numpy(),
    "x.tolist()": lambda: SMALL.tolist(),
    "x.new_tensor": lambda: SMALL.new_tensor(1.0),
    "x.untyped_storage().device": lambda: SMALL.untyped_storage().device,
    "linear": lambda: F.linear(SMALL, MATRIX),
    "einsum": lambda: torch.einsum("i,ij->j", SMALL, MATRIX),
    "scaled_dot_product_attention": lambda: F.scaled_dot_product_attention(HEADS, HEADS, HEADS),
    "batch_norm": lambda: F.batch_norm(MATRIX, SMALL, SMALL),
    "cross_entropy": lambda: F.cross_entropy(SMALL, MATRIX[0]),
    "asarray": lambda: torch.asarray(SMALL),
    "x.data = y": lambda: setattr(SMALL, "data", SMALL.data),
}


def nanoseconds(case: Callable[[], Any], rounds: int) -> tuple[float, float]:
    """The least time of a call without and with torchfake active, measured by turns."""
    timer = timeit.Timer(case)
    without, active = [], []
    for _ in range(4 * rounds):
        torchfake.uninstall()
        without.append(timer.timeit(CALLS))
        _C.activate()
        active.append(timer.timeit(CALLS))
    return min(without) / CALLS * 1e9, min(active) / CALLS * 1e9


def run(report: Report) -> None:
    gc.collect()
    table = new_table("Real tensors, ns a call", "call", "without", "active", "ratio")
    rows = []
    with no_garbage_collection():
        for name, case in track(CASES.items(), "real", console=console, transient=True):
            without, active = nanoseconds(case, report.rounds)
            rows.append({"call": name, "without": without, "active": active})
            table.add_row(name, number(without), number(active), f"{active / without:.3f}")
    console.print(table)
    report.results["real"] = rows
    worst = max(row["active"] / row["without"] for row in rows)
    report.goal("real tensors: the cost with torchfake active, of that without", worst, at_most=WANTED)
