"""Growth: what an operator costs, and what a tensor takes, as layers, live fakes and cache entries multiply."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.progress import track
from torch import Tensor, nn

import torchfake
from torchfake_bench import sides
from torchfake_bench.report import Report, console, new_table, number, ratio
from torchfake_bench.sides import Side
from torchfake_bench.timing import loop_seconds, median, no_garbage_collection, seconds

LAYERS = (10, 100, 1000)
KEPT_LAYERS = 10_000  # for memory: this many in all, in models of each depth
LIVE = (10**3, 10**4, 10**5, 10**6)
MOST_LIVE = {"torchfake": 10**6, "FakeTensorMode": 10**5, "meta": 10**6}
FILL = (2_000, 10_000, 60_000, 120_000, 240_000)  # entries; the cache holds 65,536 by default
NEW_SHAPES, FEW_SHAPES, MANY_SHAPES = 1_000, 10, 20_000

Row = dict[str, Any]


def side_named(name: str) -> Side:
    return next(side for side in sides.model_sides() if side.name == name)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def in_fresh_process(call: Callable[..., Any], *arguments: Any) -> Any:
    """Memory is measured where nothing was freed before."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as executor:
        return executor.submit(call, *arguments).result()


def flatness(values: list[float]) -> float:
    return max(values) / min(values)


# -- layers -----------------------------------------------------------------------------------------------------------


def deep_model(layers: int) -> nn.Module:
    return nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64)) for _ in range(layers)))


def count_ops(call: Callable[[], object]) -> int:
    before = torchfake.cache_info()
    call()
    after = torchfake.cache_info()
    return after.hits - before.hits + after.misses - before.misses


def layer_costs(rounds: int) -> list[Row]:
    """Microseconds an operator of a warm forward and backward."""
    prepared: dict[tuple[str, int], tuple[Side, Callable[[], None], list[float]]] = {}
    ops = {}
    for layers in LAYERS:
        for name in ("torchfake", "FakeTensorMode", "tiny real"):
            side = side_named(name)
            with side.entered():
                model, x = deep_model(layers), torch.rand(8, 64)

                def run(model: nn.Module = model, x: Tensor = x) -> None:
                    model.zero_grad()
                    model(x).sum().backward()

                run()
                if name == "torchfake":
                    ops[layers] = count_ops(run)
            prepared[name, layers] = (side, run, [])
    for _ in range(rounds):
        for (name, layers), (side, run, taken) in prepared.items():
            repeats = 1 if name == "FakeTensorMode" else LAYERS[-1] // layers
            with side.entered():
                taken.append(loop_seconds(run, repeats) / repeats / ops[layers] * 1e6)
    return [
        {"layers": layers, "ops": ops[layers]}
        | {name: median(prepared[name, layers][2]) for name in ("torchfake", "FakeTensorMode", "tiny real")}
        for layers in LAYERS
    ]


@torch.no_grad()
def bytes_per_tensor(layers: int) -> float:
    """Of models that deep, with all that their forward computes kept."""
    kept: list[Tensor] = []
    with torchfake.fake_mode(), no_garbage_collection():
        x = torch.rand(8, 64)
        before = resident_bytes()
        for _ in range(KEPT_LAYERS // layers):
            y = x
            for _ in range(layers):
                weight, bias, scale = torch.empty(64, 64), torch.empty(64), torch.empty(64)
                linear = F.linear(y, weight, bias)
                gelu = F.gelu(linear)
                y = F.layer_norm(gelu, (64,), scale, bias)
                kept += (weight, bias, scale, linear, gelu, y)
        return (resident_bytes() - before) / len(kept)


def layers(report: Report) -> None:
    rows = layer_costs(report.rounds)
    for row in rows:
        row["bytes per tensor"] = in_fresh_process(bytes_per_tensor, row["layers"])
    names = ("torchfake", "FakeTensorMode", "tiny real")
    table = new_table(
        "Layers: microseconds an op of a warm forward and backward, and bytes a tensor kept",
        *("layers", "ops", *names, "FakeTensorMode / torchfake", "torchfake / real", "bytes per tensor"),
    )
    for row in rows:
        table.add_row(
            *(f"{row['layers']:,}", f"{row['ops']:,}", *(number(row[name]) for name in names)),
            ratio(row["FakeTensorMode"], row["torchfake"]),
            ratio(row["torchfake"], row["tiny real"]),
            number(row["bytes per tensor"]),
        )
    console.print(table)
    report.results["layers"] = rows
    flat = flatness([row["torchfake"] for row in rows])
    report.goal("cost per op, 10 to 1,000 layers: highest over lowest", flat, at_most=1.2)


# -- live fakes -------------------------------------------------------------------------------------------------------


def create(tensors: list[Tensor], count: int, device: str) -> None:
    for _ in range(count):
        tensors.append(torch.empty(16, 16, device=device))


def live_tensors(name: str, series: int) -> list[Row]:
    """Grows a list of tensors, measuring at each of `LIVE`. Bytes from the first series, times from all."""
    side = side_named(name)
    rows: list[Row] = [{"live": live, "create": [], "add": [], "view": []} for live in LIVE if live <= MOST_LIVE[name]]
    with side.entered(), no_garbage_collection():
        x = torch.rand(16, 16, device=side.device)
        x + x, x.view(256), torch.empty(16, 16, device=side.device)  # into the cache
        for turn in range(series):
            tensors: list[Tensor] = []
            start = resident_bytes()
            for row in rows:
                grow = row["live"] - len(tensors)
                row["create"].append(seconds(partial(create, tensors, grow, side.device)) / grow * 1e6)
                if turn == 0:
                    row["bytes"] = (resident_bytes() - start) / row["live"]
                repeats = 50 if name == "FakeTensorMode" else 5_000
                row["add"].append(loop_seconds(lambda: x + x, repeats) / repeats * 1e6)
                row["view"].append(loop_seconds(lambda: x.view(256), repeats) / repeats * 1e6)
    return [{key: median(value) if isinstance(value, list) else value for key, value in row.items()} for row in rows]


def live(report: Report) -> None:
    series = max(1, report.rounds // 2)
    found = {
        name: in_fresh_process(live_tensors, name, series)
        for name in track(MOST_LIVE, "live fakes", console=console, transient=True)
    }
    table = new_table(
        "Live tensors: microseconds an op, and bytes a tensor",
        *("live", "", "create", "add", "view", "bytes"),
    )
    for index, live in enumerate(LIVE):
        for name, rows in found.items():
            if index < len(rows):
                row = rows[index]
                table.add_row(f"{live:,}", name, *(number(row[key]) for key in ("create", "add", "view", "bytes")))
        table.add_section()
    console.print(table)
    report.results["live"] = found
    ours = found["torchfake"]
    worst = max(flatness([row[key] for row in ours]) for key in ("create", "add", "view"))
    report.goal("cost per op, 10^3 to 10^6 live fakes: highest over lowest, worst op", worst, at_most=1.2)
    report.goal("bytes per live fake, of 10^6", ours[-1]["bytes"], at_most=1536)


# -- the cache fills --------------------------------------------------------------------------------------------------


def make_shapes(first: int, count: int) -> None:
    for rows in range(first, first + count):
        torch.empty(rows, 3)


def fill_cache(rounds: int) -> list[Row]:
    """Microseconds of a miss and of a hit, when that many shapes have been seen."""
    table: list[Row] = [{"shapes": shapes, "miss": [], "hit few": [], "hit many": []} for shapes in FILL]
    with torchfake.fake_mode():
        for _ in range(rounds):
            torchfake.clear_cache()
            seen = 0
            for row in table:
                make_shapes(seen, row["shapes"] - NEW_SHAPES - seen)
                seen = row["shapes"]
                taken = seconds(partial(make_shapes, seen - NEW_SHAPES, NEW_SHAPES))
                row["miss"].append(taken / NEW_SHAPES * 1e6)
                for key, shapes in (("hit few", FEW_SHAPES), ("hit many", min(MANY_SHAPES, seen))):
                    again = partial(make_shapes, seen - shapes, shapes)
                    repeats = max(1, MANY_SHAPES // shapes)
                    again()
                    row[key].append(loop_seconds(again, repeats) / repeats / shapes * 1e6)
                row["entries"] = torchfake.cache_info().size
    return [{key: median(value) if isinstance(value, list) else value for key, value in row.items()} for row in table]


def cache(report: Report) -> None:
    rows = fill_cache(max(1, report.rounds // 2))
    torchfake.clear_cache()
    table = new_table(
        "The cache fills: microseconds of torch.empty",
        *("shapes seen", "entries held", "miss", f"hit, {FEW_SHAPES} shapes", f"hit, the last {MANY_SHAPES:,} shapes"),
    )
    for row in rows:
        table.add_row(
            f"{row['shapes']:,}", f"{row['entries']:,}", *(number(row[key]) for key in ("miss", "hit few", "hit many"))
        )
    console.print(table)
    report.results["cache"] = rows
    for key, label in (("hit few", "a hit"), ("miss", "a miss")):
        value = flatness([row[key] for row in rows])
        report.goal(f"cost of {label} as the cache fills and overflows: highest over lowest", value, at_most=1.2)


def run(report: Report) -> None:
    sides.single_thread()
    layers(report)
    live(report)
    cache(report)
