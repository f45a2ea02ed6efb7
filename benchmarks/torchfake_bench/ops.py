"""Operators one by one: torchfake, hit and miss, against meta tensors, FakeTensorMode and the real operator."""

from __future__ import annotations

from typing import Any

from rich.progress import track

from torchfake_bench import sides
from torchfake_bench.op_cases import CASES, SHAPES, Case, Inputs
from torchfake_bench.report import Report, console, new_table, number, ratio
from torchfake_bench.timing import geometric_mean, loop_seconds, median, repeats_for

Row = dict[str, Any]


def measure(case: Case, shape: str, rounds: int) -> Row:
    """Microseconds a call for each side, None where it cannot run; and whether the two caches answered."""
    row: Row = {"op": case.name, "shape": shape}
    prepared = []
    for side in sides.op_sides():
        row[side.name] = None
        try:
            with side.entered():
                inputs = Inputs(SHAPES[shape], side.device)
                call = lambda inputs=inputs: case.call(inputs)  # noqa: E731
                call()
                prepared.append((side, call, repeats_for(call)))
                if side.name == "hit":
                    row["from cache"] = sides.torchfake_answered(call)
                elif side.name == "FakeTensorMode hit":
                    row["FakeTensorMode from cache"] = sides.fake_tensor_mode_answered(call)
        except Exception as error:
            row[f"{side.name} error"] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    taken: dict[str, list[float]] = {side.name: [] for side, _, _ in prepared}
    for _ in range(rounds):
        for side, call, repeats in prepared:
            with side.entered():
                taken[side.name].append(loop_seconds(call, repeats) / repeats * 1e6)
    for name, times in taken.items():
        row[name] = median(times)
    return row


def print_table(shape: str, rows: list[Row]) -> None:
    names = ("hit", "miss", "meta", "FakeTensorMode hit", "FakeTensorMode miss", "real")
    table = new_table(
        f"{shape}: microseconds a call, and how many times faster",
        "op",
        *("hit", "miss", "meta", "FTM hit", "FTM miss", "real"),
        *("FTM hit / hit", "FTM miss / miss", "real / hit"),
    )
    for row in rows:
        times = [number(row[name]) for name in names]
        times[0] += "" if row.get("from cache", False) else "*"
        times[3] += "" if row.get("FakeTensorMode from cache", False) or row["FakeTensorMode hit"] is None else "*"
        table.add_row(
            row["op"],
            *times,
            ratio(row["FakeTensorMode hit"], row["hit"]),
            ratio(row["FakeTensorMode miss"], row["miss"]),
            ratio(row["real"], row["hit"]),
        )
    console.print(table)
    console.print("FTM: FakeTensorMode. * not, or not wholly, answered from the cache. - cannot run it.\n")


def ratios(rows: list[Row], slow: str, fast: str) -> list[float]:
    return [row[slow] / row[fast] for row in rows if row[slow] is not None and row[fast] is not None]


def summary(rows: list[Row]) -> dict[str, float]:
    below = [value > 1 for value in ratios(rows, "real", "hit")]
    return {
        "ops": len(rows),
        "hit vs FakeTensorMode hit": geometric_mean(ratios(rows, "FakeTensorMode hit", "hit")),
        "miss vs FakeTensorMode miss": geometric_mean(ratios(rows, "FakeTensorMode miss", "miss")),
        "hit vs meta": geometric_mean(ratios(rows, "meta", "hit")),
        "hit vs real": geometric_mean(ratios(rows, "real", "hit")),
        "share below real": sum(below) / len(below) if below else 0.0,
    }


def run(report: Report) -> None:
    sides.single_thread()
    sides.clear_caches()
    rows = []
    tasks = [(case, shape) for shape in SHAPES for case in CASES if shape in case.shapes]
    for case, shape in track(tasks, "ops", console=console, transient=True):
        rows.append(measure(case, shape, report.rounds))
    summaries = {}
    for shape in SHAPES:
        of_shape = [row for row in rows if row["shape"] == shape]
        print_table(shape, of_shape)
        summaries[shape] = summary(of_shape)
    summaries["all"] = summary(rows)
    table = new_table("Geometric means, in times faster", "inputs", *summaries["all"])
    for shape, values in summaries.items():
        table.add_row(shape, *(number(value) for value in values.values()))
    console.print(table)
    report.results["ops"] = {"rows": rows, "summary": summaries}
    report.goal("hit against FakeTensorMode's hit", summaries["all"]["hit vs FakeTensorMode hit"], at_least=100)
    report.goal("miss against FakeTensorMode's miss", summaries["all"]["miss vs FakeTensorMode miss"], at_least=10)
    report.goal("share of ops whose hit is below the real 16x16 one", summaries["16x16"]["share below real"], 0.9)
