"""Whole models: construction, first and warm forward and backward, AdamW step."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any

import torch
from rich.progress import track
from torch import nn
from transformers.utils import logging

import torchfake
from torchfake_bench import sides
from torchfake_bench.model_cases import CASES, ModelCase, llama
from torchfake_bench.report import Report, console, new_table, number, ratio
from torchfake_bench.sides import Side
from torchfake_bench.timing import geometric_mean, loop_seconds, median, seconds

PHASES = ("construction", "first forward+backward", "warm forward+backward", "AdamW step")
FIRST, WARM = PHASES[1], PHASES[2]

#: How long to repeat a warm step within a round.
WARM_SECONDS = 0.1

Row = dict[str, Any]


@contextlib.contextmanager
def building(side: Side) -> Any:
    with side.entered(), torch.device("meta") if side.device == "meta" else contextlib.nullcontext():
        yield


def step(case: ModelCase, model: nn.Module, size: str, device: str) -> None:
    model.zero_grad()
    case.loss(model, size, device).backward()


def warm_seconds(call: Any, estimate: float) -> float:
    repeats = max(1, min(20, round(WARM_SECONDS / estimate)))
    return loop_seconds(call, repeats) / repeats


def count_ops(call: Any) -> int:
    """How many operators reach the engine."""
    before = torchfake.cache_info()
    call()
    after = torchfake.cache_info()
    bypasses = sum(after.bypasses.values()) - sum(before.bypasses.values())
    return after.hits - before.hits + after.misses - before.misses + bypasses


def one_round(case: ModelCase, side: Side, size: str) -> Row:
    """Seconds by phase, as far as the side gets."""
    row: Row = {}
    sides.clear_caches()
    built: list[nn.Module] = []
    try:
        with building(side):
            row["construction"] = seconds(lambda: built.append(case.build(size).train(case.trains)))
        model = built[0]
        run = lambda: step(case, model, size, side.device)  # noqa: E731
        with side.entered():
            row[FIRST] = seconds(run)
            row[WARM] = warm_seconds(run, row[FIRST])
            if side.name == "torchfake":
                row["ops"] = count_ops(run)
            # PyTorch takes foreach by itself on GPUs; a claimed CPU has to ask for it.
            optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
            first = seconds(optimizer.step)
            row["AdamW step"] = warm_seconds(optimizer.step, first)
    except Exception as error:
        row["error"] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    return row


def measure(case: ModelCase, rounds: int) -> list[Row]:
    """One row a phase, with the medians of all sides in milliseconds."""
    sizes = {side.name: "tiny" if side.name == "tiny real" else "full" for side in sides.model_sides()}
    for side in sides.model_sides():
        one_round(case, side, "tiny")  # Python's imports and registries, once
    found: dict[str, list[Row]] = {name: [] for name in sizes}
    for _ in range(rounds):
        for side in sides.model_sides():
            found[side.name].append(one_round(case, side, sizes[side.name]))
    rows = []
    for phase in PHASES:
        row: Row = {"model": case.name, "phase": phase}
        for name, results in found.items():
            times = [result[phase] for result in results if phase in result]
            row[name] = median(times) * 1e3 if times else None
            if "error" in results[0]:
                row[f"{name} error"] = results[0]["error"]
        if phase == WARM:
            row["ops"] = found["torchfake"][0].get("ops")
        rows.append(row)
    return rows


def llama_405b(rounds: int) -> Row:
    """Building it, cold, in milliseconds."""
    taken: dict[str, list[float]] = {}
    for _ in range(rounds):
        for side in sides.model_sides()[:3]:
            sides.clear_caches()
            with building(side):
                taken.setdefault(side.name, []).append(seconds(lambda: llama("405B")))
    return {"model": "Llama-405B", "phase": "construction", "tiny real": None} | {
        name: median(times) * 1e3 for name, times in taken.items()
    }


def print_table(rows: list[Row]) -> None:
    table = new_table(
        "Models: milliseconds",
        "model",
        *("phase", "torchfake", "FakeTensorMode", "meta", "tiny real"),
        *("FakeTensorMode / torchfake", "meta / torchfake", "torchfake / tiny real", "ops"),
    )
    for row in rows:
        names = ("torchfake", "FakeTensorMode", "meta", "tiny real")
        table.add_row(
            row["model"] if row["phase"] == PHASES[0] else "",
            row["phase"],
            *(number(row[name]) for name in names),
            ratio(row["FakeTensorMode"], row["torchfake"]),
            ratio(row["meta"], row["torchfake"]),
            ratio(row["torchfake"], row["tiny real"]),
            str(row["ops"]) if row.get("ops") else "",
            end_section=row["phase"] == PHASES[-1],
        )
    console.print(table)
    console.print("- cannot run it; why is in the JSON file. ops: those that reach the engine in one step.\n")


def ratios(rows: list[Row], phase: str, above: str, below: str) -> list[float]:
    return [
        row[above] / row[below]
        for row in rows
        if row["phase"] == phase and row[above] is not None and row[below] is not None
    ]


def run(report: Report) -> None:
    warnings.filterwarnings("ignore")
    logging.set_verbosity_error()
    sides.single_thread()
    rounds = max(1, report.rounds // 2)
    rows = [row for case in track(CASES, "models", console=console, transient=True) for row in measure(case, rounds)]
    rows.append(llama_405b(rounds))
    print_table(rows)
    means = {phase: geometric_mean(ratios(rows, phase, "FakeTensorMode", "torchfake")) for phase in PHASES}
    report.results["models"] = {"rows": rows, "rounds": rounds, "FakeTensorMode / torchfake": means}
    warm, first = (ratios(rows, phase, "FakeTensorMode", "torchfake") for phase in (WARM, FIRST))
    against_real = ratios(rows, WARM, "torchfake", "tiny real")
    nan = float("nan")
    report.goal("warm forward+backward against FakeTensorMode, worst model", min(warm, default=nan), at_least=20)
    report.goal("warm forward+backward against FakeTensorMode, geometric mean", means[WARM], at_least=20)
    report.goal("first forward+backward against FakeTensorMode, worst model", min(first, default=nan), at_least=8)
    report.goal("first forward+backward against FakeTensorMode, geometric mean", means[FIRST], at_least=8)
    report.goal("warm forward+backward over the tiny real model's, worst model", max(against_real), at_most=1)
    report.goal("building Llama-405B, in seconds", rows[-1]["torchfake"] / 1e3, at_most=1)
