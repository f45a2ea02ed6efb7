"""Fits torchfake.step_time to what record_step_time.py recorded on a card, and tells the errors.

    python tools/fit_step_time.py --pack FOLDER   # makes tests/memory/recorded/step_time.json.gz of a recording
    python tools/fit_step_time.py                 # fits to that file: python/torchfake/recordings/step_time_CARD.json

Kernels are fitted to single calls, the host's part to single small calls. One number is taken from whole programs,
those of tests/memory/workloads.py: how much longer the host takes for a call in a program than for the same one in a
loop. The programs of held_out.py and later.py are only compared.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))
import step_time_programs as programs
from record_step_time import directions
from step_time_host import host_cases, make_indices

from torchfake import step_time
from torchfake._card_speeds import speed_of
from torchfake._cards import CARDS
from torchfake._step_time_model import KERNEL_PARTS, SCHEMA, Recording, combined, host_parts, kernel_group, kernel_parts
from torchfake.modes import fake_mode

ROOT = Path(__file__).parents[1]
PACKED = ROOT / "tests" / "memory" / "recorded" / "step_time.json.gz"
Rows = list[step_time.Row]

#: The kernels of an operator are recorded under these names.
_INNER = {
    "aten::convolution": [
        "aten::cudnn_convolution",
        "aten::cudnn_convolution_transpose",
        "aten::_conv_depthwise2d",
        "aten::conv_depthwise3d",
    ]
} | {
    f"aten::_scaled_dot_product_{kind}_attention{suffix}": [f"aten::_{kind}_attention_{inner}"]
    for kind in ("flash", "efficient", "cudnn")
    for suffix, inner in (("", "forward"), ("_backward", "backward"))
}
#: Rows of a matrix that are longer than in most networks have kernels of their own.
_WIDEST = 16384
#: Host cases that say nothing about operators, or wait for the card.
_QUEUE = 1000  # launches that do not wait
_LEFT_OUT = ("plain:python_loop", "plain:item", "plain:synchronize", "plain:no_grad", "plain:autocast")


# ---- The recording ---------------------------------------------------------------------------------------------------


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text().splitlines():
        row = json.loads(line)
        if "error" not in row:
            yield row


def pack(folder: Path) -> dict[str, Any]:
    """What the fit needs of a recording: kernels summed by operator, medians of repeated times."""
    host = {row["name"]: row for row in _lines(folder / "host.jsonl")}
    machine = host.pop("machine")
    cases = {row["index"]: row["case"] for row in _lines(folder / "operators.jsonl")}
    timed = {row["index"]: row for row in _lines(folder / "operators.jsonl")}
    kernels, gaps = [], []
    from step_time_cases import all_cases

    known = dict(enumerate(all_cases())) | cases
    for part in _lines(folder / "operator_kernels.jsonl"):
        for mark, launches in part["cases"]:
            _, index, direction = mark.split(":")
            sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
            for launch in launches:
                name = launch[1] if len(launch) == 6 else "?"
                sums[name][0] += launch[-2] / 3
                sums[name][1] += launch[-1] / 3
            if not {"Activity Buffer Request", "Lazy Function Loading", "?"} & sums.keys():
                rounded = {name: [round(n, 2), round(us, 2)] for name, (n, us) in sums.items()}
                kernels.append([known[int(index)], direction, rounded])
                count, busy = (sum(each[i] for each in rounded.values()) for i in (0, 1))
                if int(index) in timed and direction in timed[int(index)] and 1 <= count <= 20:
                    gaps.append((timed[int(index)][direction]["card"] * 1e6 - busy) / count)
    recurrent = [
        [row["case"], direction, row[direction]["host"], row[direction]["count"]]
        for row in timed.values()
        for direction in ("forward", "backward")
        if row["case"]["kind"] == "recurrent" and direction in row
    ]
    steps = {row["name"]: row for row in _lines(folder / "programs.jsonl")}
    for row in _lines(folder / "program_kernels.jsonl"):
        steps[row["name"]] |= {"busy": row["busy"], "kernels": row["kernels"]}
    return {
        "machine": machine,
        "gap": round(statistics.median(gaps), 2),
        "host": {name: row["seconds"] for name, row in host.items()},
        "kernels": kernels,
        "recurrent": recurrent,
        "programs": {
            name: {
                "set": row["set"],
                "measured": statistics.median(row["wall"]),
                "host": statistics.median(row["host"]),
                "busy": row["busy"],
                "kernels": row["kernels"],
            }
            for name, row in steps.items()
        },
    }


# ---- Counting on fakes -----------------------------------------------------------------------------------------------


def _counted(call: Callable[[], Any]) -> Rows:
    with step_time.measure() as work:
        call()
    return work.host_rows


def count_program(name: str) -> Rows:
    """The rows of a step of a program; must be called in a mode."""
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    if programs.is_whole(name):
        work = step_time.measure()
        with work._exits:
            programs.drive(name, lambda step: None, lambda: work.__enter__())
        return work.host_rows
    found: list[Rows] = []

    def of_step(step: Callable[[], None]) -> None:
        step()
        found.append(_counted(step))

    programs.drive(name, of_step, lambda: None)
    return found[0]


def count_host_cases(recording: dict[str, Any]) -> dict[str, tuple[Rows, float]]:
    """The rows of calls whose time on the host was recorded, and that time."""
    make_indices()
    found = {}
    for name, make in host_cases().items():
        if name.startswith(_LEFT_OUT) or name not in recording["host"]:
            continue
        call = make().run
        call()
        found[name] = _counted(call), recording["host"][name]
    # A long sequence of small kernels, unless it filled the queue of the card and had to wait.
    for i, (case, direction, seconds, count) in enumerate(recording["recurrent"]):
        rows = _counted(dict(directions(case))[direction])
        if sum(row.launches * row.calls for row in rows) * count < _QUEUE:
            found[f"{direction}:recurrent {i}"] = rows, seconds
    return found


# ---- Kernels ---------------------------------------------------------------------------------------------------------


def samples(recording: dict[str, Any]) -> Iterator[tuple[step_time.Row, float]]:
    """Calls and their microseconds on the card, with the gaps between kernels. Where several calls of a case cannot be
    told apart, none."""
    for case, direction, kernels in recording["kernels"]:
        if case["kind"] == "unary" and case["columns"] > _WIDEST:
            continue
        call = dict(directions(case))[direction]
        by_name: dict[str, Rows] = defaultdict(list)
        for row in _counted(call):
            if row.launches and not row.device.startswith("cpu"):
                by_name[row.op].append(row)
        left, unknown = dict(kernels), []
        for name, rows in by_name.items():
            found = [left.pop(inner) for inner in [name, *_INNER.get(name, [])] if inner in left]
            if not found:
                unknown += rows
            elif len(rows) == 1:
                yield rows[0], sum(us + n * recording["gap"] for n, us in found) / rows[0].calls
        if left and len(unknown) == 1:
            yield unknown[0], sum(us + n * recording["gap"] for n, us in left.values()) / unknown[0].calls


def non_negative(a: np.ndarray, b: np.ndarray, start: np.ndarray, rounds: int = 3000) -> np.ndarray:
    """The least squares of a @ x = b with x >= 0, by multiplicative updates."""
    x, ata, atb = start.copy(), a.T @ a, a.T @ b
    for _ in range(rounds):
        x *= np.maximum(atb, 1e-15) / (ata @ x + 1e-15)
    return x


#: Coefficients to begin with, and the least that they can be: no arithmetic is faster than published, but what lies in
#: the cache need not come from memory.
_BEGIN, _LEAST = np.array([3.0, 1.5, 1.5, 0.3]), np.array([0.5, 0.2, 1.0, 0.0])
PULL = 0.02
_FACTORS = (0.25, 0.5, 0.8, 0.93, 0.98, 1.02, 1.07, 1.25, 2.0, 4.0)


def _off(coefficients: np.ndarray, parts: np.ndarray, times: np.ndarray) -> float:
    """The mean error by factor, by which long kernels count more; and how unusual the coefficients are, which decides
    where no recorded kernel does: sums of small ones say little about arithmetic."""
    unusual = np.log(coefficients[1:3] / _BEGIN[1:3], where=coefficients[1:3] > 0, out=np.zeros(2))
    each = parts * coefficients
    estimates = each[:, 0] + np.maximum(each[:, 1], each[:, 2]) + each[:, 3]
    return float(
        np.average(np.abs(np.log(estimates / times)), weights=(times * 1e6) ** 0.25) + PULL * (unusual**2).sum()
    )


def fit_parts(parts: np.ndarray, times: np.ndarray) -> np.ndarray:
    """The coefficients with the least error, one after the other until none can be bettered."""
    best = _BEGIN * (parts.max(axis=0) > 0)
    least = _off(best, parts, times)
    for _ in range(200):
        before = least
        for i in np.flatnonzero(best):
            for factor in _FACTORS:
                tried = best.copy()
                tried[i] = max(best[i] * factor, _LEAST[i])
                error = _off(tried, parts, times)
                if error < least:
                    best, least = tried, error
        if least > before * 0.9999:
            break
    return best


def fit_kernels(found: list[tuple[step_time.Row, float]], card: str) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Coefficients by group, and the factors of operators that differ from their group."""
    speed = speed_of(CARDS[card])
    groups: dict[str, list[tuple[step_time.Row, float]]] = defaultdict(list)
    for row, us in found:
        groups[kernel_group(row)].append((row, us * 1e-6))
    kernels: dict[str, list[float]] = {}
    off: dict[str, list[float]] = defaultdict(list)
    for group, rows in sorted(groups.items()):
        if len(rows) < 2 * len(KERNEL_PARTS):
            continue
        parts = np.array([kernel_parts(row, speed) for row, _ in rows])
        times = np.array([seconds for _, seconds in rows])
        kernels[group] = [float(f"{c:.4g}") for c in fit_parts(parts, times)]
        estimates = [combined(kernels[group], each) for each in parts]
        for (row, _), estimate, seconds in zip(rows, estimates, times, strict=True):
            off[row.op].append(float(np.log(seconds / estimate)))
    # The fewer calls, the closer to the group.
    factors = {name: float(np.exp(np.median(each) * len(each) / (len(each) + 4))) for name, each in off.items()}
    return kernels, {name: round(f, 3) for name, f in sorted(factors.items()) if abs(f - 1) > 0.05}


# ---- The host --------------------------------------------------------------------------------------------------------


def _sums(rows: Rows) -> dict[str, float]:
    sums: dict[str, float] = defaultdict(float)
    for row in rows:
        for part, count in host_parts(row).items():
            sums[part] += count * row.calls
    return sums


def fit_host(counted: dict[str, tuple[Rows, float]]) -> dict[str, float]:
    """Microseconds by part, of small calls in a loop."""
    sums = [_sums(rows) for rows, _ in counted.values()]
    for name, each in zip(counted, sums, strict=True):
        if name.startswith(("backward", "accumulate")):
            each["backward pass"] = 1.0
    parts = sorted({part for each in sums for part in each})
    a = np.array([[each.get(part, 0.0) for part in parts] for each in sums])
    b = np.array([seconds for _, seconds in counted.values()]) * 1e6
    # An operator's own part is 0 unless its calls say otherwise.
    pull = np.array([0.15 if part.startswith("operator/") else 0.0 for part in parts])
    relative = np.vstack([a / b[:, None], np.diag(pull / 10)])
    wanted = np.concatenate([np.ones(len(b)), np.zeros(len(parts))])
    x = non_negative(relative, wanted, np.full(len(parts), 3.0), 20000)
    return {part: float(us) for part, us in zip(parts, x, strict=True) if us > 0.02}


def _times(part: str, slower: float) -> float:
    """The launches inside a recurrent network are a loop in programs, too."""
    return 1.0 if part == "launch" else slower


def slower_in_programs(recording: dict[str, Any], counted: dict[str, Rows], host: dict[str, float]) -> float:
    """How much longer a call takes in a program of `workloads.py` than in a loop, in the median."""
    ratios = []
    for name, figures in recording["programs"].items():
        if figures["set"] == "workloads":
            sums = _sums(counted[name])
            launches = sums.pop("launch", 0.0) * host.get("launch", 0.0)
            others = sum(count * host.get(part, 0.0) for part, count in sums.items())
            ratios.append((figures["host"] * 1e6 - launches) / others)
    return statistics.median(ratios)


# ---- Programs --------------------------------------------------------------------------------------------------------


def compare(recording: dict[str, Any], fitted: Recording, counted: dict[str, Rows], card: str) -> list[dict[str, Any]]:
    """Measured and estimated seconds of the programs: of a step, of the card, of the host."""
    speed, rows = speed_of(CARDS[card]), []
    for name, figures in recording["programs"].items():
        costs = [step_time._cost(row, speed, fitted, 8) for row in counted[name]]
        busy, host = sum(cost.seconds for cost in costs), sum(cost.host for cost in costs)
        card_seconds = figures["busy"] + figures["kernels"] * recording["gap"] * 1e-6
        rows.append(
            {"set": figures["set"], "name": name, "measured": figures["measured"], "estimated": max(busy, host)}
            | {"card": card_seconds, "estimated_card": busy, "host": figures["host"], "estimated_host": host}
        )
    return [{k: v if isinstance(v, str) else float(f"{v:.4g}") for k, v in row.items()} for row in rows]


def errors(rows: list[dict[str, Any]], estimated: str, measured: str) -> tuple[float, float]:
    """The median and the worst relative error."""
    off = sorted(abs(row[estimated] / row[measured] - 1) for row in rows)
    return off[len(off) // 2], off[-1]


def table(rows: list[dict[str, Any]]) -> str:
    """For the guide: errors by set, then each program."""
    lines = [
        "| programs | count | step: median | step: worst | card: median | card: worst |",
        "|---|---|---|---|---|---|",
    ]
    for kind in ("workloads", "held_out", "later"):
        each = [row for row in rows if row["set"] == kind]
        figures = [*errors(each, "estimated", "measured"), *errors(each, "estimated_card", "card")]
        lines.append(f"| `{kind}.py` | {len(each)} | " + " | ".join(f"{error:.0%}" for error in figures) + " |")
    lines += [
        "",
        "| program | measured | estimated | error | card measured | card estimated |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        milliseconds = [f"{row[key] * 1e3:.2f} ms" for key in ("measured", "estimated", "card", "estimated_card")]
        error = f"{row['estimated'] / row['measured'] - 1:+.0%}"
        cells = [row["name"], *milliseconds[:2], error, *milliseconds[2:]]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def fit(recording: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The card, and the data of its file."""
    machine = recording["machine"]
    card = next(key for key, card in CARDS.items() if card.name == machine["card"])
    with fake_mode(gpus=card, unlimited=True, unknown="stand-in"):
        counted = {name: count_program(name) for name in recording["programs"]}
        host = fit_host(count_host_cases(recording))
        kernels, operators = fit_kernels(list(samples(recording)), card)
    slower = slower_in_programs(recording, counted, host)
    data = {
        "schema": SCHEMA,
        "card": machine["card"],
        "source": f"PyTorch {machine['torch']}, Python {machine['python']}, {machine['processor']}",
        "kernels": kernels,
        "operators": operators,
        "slower_in_programs": round(slower, 3),
        "host": {part: float(f"{us * _times(part, slower) * 1e-6:.4g}") for part, us in host.items()},
    }
    numbers = {group: tuple(each) for group, each in kernels.items()}
    fitted = Recording(data["card"], data["source"], numbers, operators, data["host"], [])
    return card, data | {"programs": compare(recording, fitted, counted, card)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pack", type=Path, help="a folder written by record_step_time.py")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.pack:
        text = json.dumps(pack(options.pack), separators=(",", ":"))
        PACKED.write_bytes(gzip.compress(text.encode(), mtime=0))
        return
    card, data = fit(json.loads(gzip.decompress(PACKED.read_bytes())))
    path = ROOT / "python" / "torchfake" / "recordings" / f"step_time_{card}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(data, indent=1) + "\n")
    step_time.load_recording(path)  # as an estimate will read it
    print(table(data["programs"]))


if __name__ == "__main__":
    main()
