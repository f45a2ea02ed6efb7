"""Everyday: 60 operators as programs call them, each engine in a process of its own; hits are compared with hits."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.progress import track

from torchfake_bench.everyday_ops import DIRECT, KNOWN, OPS
from torchfake_bench.everyday_worker import PEER, REAL, SIDES, TORCHFAKE, WITHOUT_VALUES
from torchfake_bench.report import Report, console, new_table, number, ratio
from torchfake_bench.timing import geometric_mean

WANTED = 80
THREADS = (1, 2, 4)
FULL = 30_000  # shapes, each with two entries: the cache holds 65,536 by default
FEW = 256
LOWEST = 12

Row = dict[str, Any]


class Process:
    """One side."""

    def __init__(self, side: str) -> None:
        folder = str(Path(__file__).parent.parent)
        path = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH", "")]))
        self.running = subprocess.Popen(
            [sys.executable, "-m", "torchfake_bench.everyday_worker", side],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": path},
        )

    def ask(self, *command: Any) -> Any:
        assert self.running.stdin is not None and self.running.stdout is not None
        print(json.dumps(command), file=self.running.stdin, flush=True)
        line = self.running.stdout.readline()
        if not line:
            raise RuntimeError(f"a benchmark process ended with {self.running.wait()}")
        answer = json.loads(line)
        if command[0] != "prepare" and isinstance(answer, dict):
            raise RuntimeError(f"{' '.join(map(str, command))}: {answer['error']}")
        return answer

    def close(self) -> None:
        assert self.running.stdin is not None
        self.running.stdin.close()
        if self.running.wait() != 0:
            raise RuntimeError(f"a benchmark process ended with {self.running.returncode}")


@contextlib.contextmanager
def processes() -> Iterator[dict[str, Process]]:
    started = {side: Process(side) for side in SIDES}
    try:
        yield started
    except BaseException:
        for process in started.values():
            process.running.kill()
        raise
    for process in started.values():
        process.close()


def measure(sides: dict[str, Process], op: str, rounds: int) -> Row:
    """Microseconds of a warm and of a first call for each side; None where it cannot run."""
    row: Row = {"op": op, "known": op in KNOWN}
    able = []
    for side, process in sides.items():
        found = process.ask("prepare", op)
        row[side] = row[f"{side} cold"] = None
        if "error" in found:
            row[f"{side} error"] = found["error"]
        else:
            able.append(side)
            row.update({f"{side} {key}": value for key, value in found.items()})
    for kind, key in (("warm", ""), ("cold", " cold")):
        taken: dict[str, list[float]] = {side: [] for side in able}
        for _ in range(rounds):
            for side in able:
                taken[side].append(sides[side].ask(kind, op))
        # The least: what else the machine does only adds.
        row.update({f"{side}{key}": min(times) for side, times in taken.items()})
    if op in DIRECT:
        row["direct"] = min(sides[TORCHFAKE].ask("direct", op) for _ in range(rounds))
    return row


def both_hit(row: Row) -> bool:
    return bool(row.get(f"{TORCHFAKE} from cache") and row.get(f"{PEER} from cache"))


def summary(rows: list[Row]) -> dict[str, Any]:
    def mean(slow: str, fast: str, chosen: list[Row]) -> float:
        return geometric_mean(
            row[slow] / row[fast] for row in chosen if row[slow] is not None and row[fast] is not None
        )

    hits = [row for row in rows if both_hit(row)]
    timed = [row for row in rows if row[REAL] is not None and row[TORCHFAKE] is not None]
    return {
        "ops": len(rows),
        "ops where both caches answer": len(hits),
        "hit against FakeTensorMode's hit": mean(PEER, TORCHFAKE, hits),
        "the same, known values alone": mean(PEER, TORCHFAKE, [row for row in hits if row["known"]]),
        "any call against FakeTensorMode's": mean(PEER, TORCHFAKE, rows),
        "first call against FakeTensorMode's": mean(f"{PEER} cold", f"{TORCHFAKE} cold", rows),
        "share at or under the real 16x16 op": sum(row[TORCHFAKE] <= row[REAL] for row in timed) / len(timed),
    }


def print_rows(rows: list[Row]) -> None:
    table = new_table(
        "Everyday operators, lowest ratio first: microseconds a call",
        "op",
        *("torchfake", "no values", "operators", "FTM", "real", "FTM / torchfake", "real / torchfake"),
        *("first", "FTM first", "ratio"),
    )
    for row in sorted(rows, key=lambda row: (row[PEER] or 1e9) / (row[TORCHFAKE] or 1e9)):
        star = "" if row.get(f"{TORCHFAKE} from cache") else "*"
        peer_star = "" if row.get(f"{PEER} from cache") or row[PEER] is None else "*"
        table.add_row(
            row["op"] + (" (known)" if row["known"] else ""),
            number(row[TORCHFAKE]) + star,
            number(row[WITHOUT_VALUES]),
            str(row.get(f"{TORCHFAKE} hits", "-")),
            number(row[PEER]) + peer_star,
            number(row[REAL]),
            ratio(row[PEER], row[TORCHFAKE]),
            ratio(row[REAL], row[TORCHFAKE]),
            number(row[f"{TORCHFAKE} cold"]),
            number(row[f"{PEER} cold"]),
            ratio(row[f"{PEER} cold"], row[f"{TORCHFAKE} cold"]),
        )
    console.print(table)
    console.print(
        "FTM: FakeTensorMode. * not, or not wholly, answered from the cache; such rows are in no mean of hits.\n"
    )


def print_slowest(rows: list[Row]) -> None:
    """Where the time of those goes that are lowest against FakeTensorMode, or above the real operator."""
    table = new_table(
        "Where the time goes: nanoseconds of a hit", "op", "in all", "values", "Python's function", "the rest"
    )
    compared = [row for row in rows if row[TORCHFAKE] and row[PEER]]
    lowest = sorted(compared, key=lambda row: row[PEER] / row[TORCHFAKE])[:LOWEST]
    above = [row for row in compared if row not in lowest and row[REAL] and row[TORCHFAKE] > row[REAL]]
    for row in lowest + above:
        whole = row[TORCHFAKE]
        values = max(0.0, whole - row[WITHOUT_VALUES]) if row["known"] else 0.0
        function = max(0.0, whole - row["direct"]) if "direct" in row else 0.0
        parts = (whole, values, function, whole - values - function)
        table.add_row(row["op"], *(f"{1e3 * part:,.0f}" for part in parts))
    console.print(table)


def threads(sides: dict[str, Process], rounds: int) -> list[Row]:
    """CPU time of a hit as more threads make them."""
    rows = []
    for count in THREADS:
        row: Row = {"threads": count}
        for side in (TORCHFAKE, PEER, REAL):
            row[side] = min(sides[side].ask("threads", "add", count) for _ in range(rounds))
        rows.append(row)
    return rows


def run(report: Report) -> None:
    with processes() as sides:
        rows = [measure(sides, op, report.rounds) for op in track(OPS, "everyday", console=console, transient=True)]
        by_threads = threads(sides, report.rounds)
        full = {shapes: sides[TORCHFAKE].ask("full_cache", shapes, 3 * FULL // shapes) for shapes in (FEW, FULL)}
    print_rows(rows)
    print_slowest(rows)
    found = summary(rows)
    table = new_table("The mix", "", "")
    for name, value in found.items():
        table.add_row(name, number(value))
    console.print(table)
    table = new_table("CPU microseconds of x + y, by threads", "threads", TORCHFAKE, PEER, REAL)
    for row in by_threads:
        table.add_row(str(row["threads"]), *(number(row[side]) for side in (TORCHFAKE, PEER, REAL)))
    console.print(table)
    console.print(f"A hit over {FULL:,} shapes in turn: {full[FULL]:.2f} us; over {FEW}: {full[FEW]:.2f} us.\n")
    report.results["everyday"] = {"rows": rows, "summary": found, "threads": by_threads, "full cache": full}
    report.goal("everyday mix: a hit against FakeTensorMode's hit", found["hit against FakeTensorMode's hit"], WANTED)
    report.goal("everyday mix: share at or under the real 16x16 op", found["share at or under the real 16x16 op"], 0.97)
