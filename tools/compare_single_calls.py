"""Compares single calls on fakes with recordings of a real card (record_memory.py), and thins recordings for the tests.

PYTHONPATH=python python tools/compare_single_calls.py FOLDER/attention.jsonl.gz [every n-th]  # errors by operator
PYTHONPATH=python python tools/compare_single_calls.py --thin FOLDER  # into tests/memory/recorded/single_calls.json.gz
"""

from __future__ import annotations

import collections
import difflib
import gzip
import itertools
import json
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torchfake

sys.path.insert(0, str(Path(__file__).parent))
from single_calls import SECTIONS, record_chunk

RECORDED = Path(__file__).parents[1] / "tests" / "memory" / "recorded" / "single_calls.json.gz"

#: How many cases of each section the tests keep.
KEPT = {"recurrent": 120, "attention": 120, "operators": 360, "algebra": 120}

#: What makes state once for a whole process, and is therefore recorded in one case only.
ONCE = ("aten._cudnn_init_dropout_state", "aten._cudnn_rnn_flatten_weight")

#: cuBLAS keeps its workspace: 32 MiB on an H200.
PRODUCTS = ("aten.mm", "aten.bmm", "aten.addmm", "aten.baddbmm", "aten.mv", "aten.dot", "aten.addmv")
WORKSPACE = 32 << 20

Call = tuple[str, str, list[int]]  # operator, outputs, events


def sizes_of(operator: str, events: list[int]) -> list[int]:
    """Requests as the allocator rounds them, and what is freed by its size. Without workspaces that are kept."""
    sizes, requests = [], []
    for event in events:
        if event > 0:
            requests.append(-(-event // 512) * 512)
            sizes.append(requests[-1])
        elif event < 0:
            sizes.append(-requests[-event - 1])
    if operator.startswith(PRODUCTS) and WORKSPACE in sizes and -WORKSPACE not in sizes:
        sizes.remove(WORKSPACE)
    return sizes


def calls_of(case: dict[str, Any]) -> list[Call]:
    return [
        (operator, outputs, sizes_of(operator, events))
        for operator, _, outputs, events, *_ in case["calls"]
        if not operator.startswith(ONCE)
    ]


def recording(path: Path) -> dict[str, dict[str, Any]]:
    """By label. Without those that ran out of memory."""
    with gzip.open(path, "rt") as lines:
        cases = [json.loads(line) for line in lines]
    return {json.dumps(case["case"]): case for case in cases if "case" in case and not case.get("out_of_memory")}


def on_fakes(section: str, labels: set[str]) -> Iterator[dict[str, Any]]:
    """The cases of a grid with these labels, in its order."""
    grid, _, _ = SECTIONS[section]
    with torchfake.fake_mode(gpus="H200"):
        chosen = ((label, call) for label, call in grid() if json.dumps(label) in labels)
        while chunk := list(itertools.islice(chosen, 40)):
            yield from record_chunk(chunk, 1, time.time() + 3600)


def pairs(found: list[Call], wanted: list[Call]) -> Iterator[tuple[Call | None, Call | None]]:
    """Calls that belong together. An operator that only one of them called stands alone."""
    names = [call[0] for call in wanted], [call[0] for call in found]
    for tag, i, i_end, j, j_end in difflib.SequenceMatcher(None, *names, autojunk=False).get_opcodes():
        if tag == "equal":
            yield from zip(found[j:j_end], wanted[i:i_end], strict=True)
        else:
            yield from ((None, call) for call in wanted[i:i_end])
            yield from ((call, None) for call in found[j:j_end])


def wrong_bytes(found: Call | None, wanted: Call | None) -> int:
    """Bytes requested by one and not by the other."""
    requests = [collections.Counter(e for e in (call[2] if call else []) if e > 0) for call in (found, wanted)]
    return sum(size * n for a, b in (requests, requests[::-1]) for size, n in (a - b).items())


def compare(path: Path, step: int) -> None:
    section = path.name.partition(".")[0]
    wanted = recording(path)
    labels = set(itertools.islice(wanted, 0, None, step))
    rows: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0, 0])  # calls, wrong, wrong bytes
    for case in on_fakes(section, labels):
        real = wanted[json.dumps(case["case"])]
        if ("error" in case) != ("error" in real):
            print("error:", case["case"], "fakes:", case.get("error"), "card:", real.get("error"))
            continue
        for found, call in pairs(calls_of(case), calls_of(real)):
            row = rows[(call or found or ("",))[0]]
            row[0] += 1
            row[1] += found is None or call is None or found[2] != call[2]
            row[2] += wrong_bytes(found, call)
    for name, (count, wrong, size) in sorted(rows.items(), key=lambda item: -item[1][2]):
        print(f"{size / 2**20:10.2f} MiB {wrong:6} of {count:6} wrong  {name}")


def reserves_of(case: dict[str, Any]) -> list[int]:
    """What recurrent networks save for the backward: the sizes of their only outputs of bytes."""
    outputs = [call[2] for call in case["calls"] if call[0] == "aten._cudnn_rnn.default"]
    sizes = [int(found[1]) for output in outputs if (found := re.search(r"uint8\[(\d+)\]", output))]
    return [size for size in sizes if size > 0]


def thin(folder: Path) -> None:
    kept = {}
    for section, count in KEPT.items():
        cases = list(recording(folder / f"{section}.jsonl.gz").values())
        chosen = cases[:: max(1, len(cases) // count)]
        kept[section] = [
            {"case": case["case"], "calls": [[c[0], "", *c[2:4]] for c in case["calls"]]}
            | ({"error": case["error"]} if "error" in case else {})
            for case in chosen
        ]
    kept["reserves"] = [
        {"case": case["case"], "reserve": reserve}
        for case in list(recording(folder / "recurrent.jsonl.gz").values())[::40]
        for reserve in reserves_of(case)[:1]
    ]
    with gzip.GzipFile(str(RECORDED), "wb", compresslevel=9, mtime=0) as packed:
        packed.write(json.dumps(kept, separators=(",", ":")).encode())
    print(RECORDED, RECORDED.stat().st_size)


if __name__ == "__main__":
    if sys.argv[1] == "--thin":
        thin(Path(sys.argv[2]))
    else:
        compare(Path(sys.argv[1]), int(sys.argv[2]) if sys.argv[2:] else 1)
