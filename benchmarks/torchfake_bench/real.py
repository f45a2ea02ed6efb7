"""Real tensors: what their operators and methods cost while torchfake is active, as a ratio of the cost without it."""

from __future__ import annotations

import gc
import time
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

WANTED, WANTED_NS = 1.05, 30
CALLS, REPEATS = 500, 10

SMALL, MATRIX, HEADS = torch.ones(4), torch.ones(4, 4), torch.ones(1, 1, 4, 4)

OPERATORS: dict[str, Callable[[], Any]] = {
    "x + x": lambda: SMALL + SMALL,
    "x[0].item()": lambda: SMALL[0].item(),
    "linear": lambda: F.linear(SMALL, MATRIX),
    "einsum": lambda: torch.einsum("i,ij->j", SMALL, MATRIX),
    "scaled_dot_product_attention": lambda: F.scaled_dot_product_attention(HEADS, HEADS, HEADS),
    "batch_norm": lambda: F.batch_norm(MATRIX, SMALL, SMALL),
    "cross_entropy": lambda: F.cross_entropy(SMALL, MATRIX[0]),
    "x.data = y": lambda: setattr(SMALL, "data", SMALL.data),
}

#: Functions of C with a stand-in in their place, some of which take a tenth of a microsecond.
REPLACED: dict[str, Callable[[], Any]] = {
    "x.numpy()": lambda: SMALL.numpy(),
    "x.tolist()": lambda: SMALL.tolist(),
    "x.is_pinned()": lambda: SMALL.is_pinned(),
    "x.new_tensor": lambda: SMALL.new_tensor(1.0),
    "x.untyped_storage().device": lambda: SMALL.untyped_storage().device,
    "asarray": lambda: torch.asarray(SMALL),
}


def nanoseconds(case: Callable[[], Any], rounds: int) -> tuple[float, float]:
    """The least time of a call without and with torchfake active, measured by turns."""
    timer = timeit.Timer(case, timer=time.thread_time)
    without, active = [], []
    for _ in range(2 * rounds):
        torchfake.uninstall()
        without += timer.repeat(REPEATS, CALLS)
        _C.activate()
        active += timer.repeat(REPEATS, CALLS)
    return min(without) / CALLS * 1e9, min(active) / CALLS * 1e9


def run(report: Report) -> None:
    gc.collect()
    torch.set_num_threads(1)
    table = new_table("Real tensors, ns a call", "call", "without", "active", "ratio")
    rows = []
    with no_garbage_collection():
        for name, case in track((OPERATORS | REPLACED).items(), "real", console=console, transient=True):
            without, active = nanoseconds(case, report.rounds)
            rows.append({"call": name, "without": without, "active": active})
            table.add_row(name, number(without), number(active), f"{active / without:.3f}")
    console.print(table)
    report.results["real"] = rows
    ratios = [row["active"] / row["without"] for row in rows if row["call"] in OPERATORS]
    more = [row["active"] - row["without"] for row in rows if row["call"] in REPLACED]
    report.goal("real operators: the cost with torchfake active, of that without", max(ratios), at_most=WANTED)
    report.goal("replaced functions, given real tensors: ns more", max(more), at_most=WANTED_NS)
