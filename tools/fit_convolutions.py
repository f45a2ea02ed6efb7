"""Fits which workspace cuDNN takes for a convolution to recorded calls (record_memory.py), and writes it as C++ data.

    python tools/fit_convolutions.py convolutions.jsonl.gz layers.jsonl.gz            # writes the table
    python tools/fit_convolutions.py convolutions.jsonl.gz layers.jsonl.gz --errors   # errors on held-out fifths

A workspace is a sum of two parts: copies of tensors in another layout, possibly with padded channels, and what the
kernel itself needs, such as partial sums of a weight. Their sizes are exact formulas (`formulas`). Which kernel cuDNN
chooses is a heuristic of its own: a decision tree for each pass and kind of arithmetic, learned from the recording.
The same formulas and features are in csrc/torchfake/rules/convolution_workspace.cpp.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "memory"))
from convolution_grid import of_networks

Array = np.ndarray[Any, Any]
Columns = dict[str, Array]

TABLE = Path(__file__).parents[1] / "csrc" / "torchfake" / "rules" / "convolution_choices.inc"
PASSES = ("forward", "input gradient", "weight gradient")
ARITHMETIC = ("half", "TF32", "float")
FIELDS = (
    "dims", "batch", "channels", "out", "size", "kernel", "stride", "padding", "dilation", "groups", "transposed",
    "dtype", "layout", "tf32",
)  # fmt: skip

INPUT, WEIGHT, OUTPUT = 1, 2, 4
ALL = INPUT | WEIGHT | OUTPUT
#: Which tensors are copied, and the multiple to which their channels are padded.
COPIES = [(0, 1)] + [(parts, pad) for pad in (1, 4, 8) for parts in (ALL, INPUT | WEIGHT, WEIGHT | OUTPUT)] + [
    (WEIGHT, 1), (INPUT | OUTPUT, 1), (INPUT, 1), (OUTPUT, 1),
]  # fmt: skip

#: What a kernel needs itself; the order is that of the enumeration in C++.
OWN = (
    "nothing", "counters", "weights", "padded weights of 4", "padded weights of 8", "inputs", "outputs", "blocks",
    "tiles", "taps", "winograd", "columns",
)  # fmt: skip

#: An error is relative to the bytes of the three tensors, at most 3; a formula that is not exact costs this more.
INEXACT = 0.03
EXACT = 0.002
LEAST_IN_LEAF, MOST_DEPTH, COST_OF_LEAF = 3, 25, 0.5
#: How many other cases a layer of a common network counts.
WEIGHT_OF_NETWORKS = 4


class Formula(NamedTuple):
    parts: int
    pad: int
    own: str
    count: int
    rows: int = 0
    columns: int = 0


def read(paths: list[Path]) -> tuple[Columns, Columns]:
    """The cases of the recordings, as cuDNN sees them, and the workspace of each pass."""
    found: dict[str, list[Any]] = {name: [] for name in FIELDS}
    taken: dict[str, list[int]] = {name: [] for name in PASSES}
    for path in paths:
        with gzip.open(path, "rt") as lines:
            for line in lines:
                record = json.loads(line)
                if "case" not in record or "error" in record or "out_of_memory" in record:
                    continue
                for name, value in zip(FIELDS, record["case"], strict=True):
                    found[name].append(value)
                for name, index in zip(PASSES, (1, 3, 5), strict=True):
                    taken[name].append(last_temporary(*record["calls"][index][3:]))
    return {name: np.array(values) for name, values in found.items()}, {
        name: np.array(values, float) for name, values in taken.items()
    }


def last_temporary(events: list[int], outputs: list[int]) -> int:
    """cuDNN's workspace is the last request; one before the output is a copy that PyTorch makes."""
    requests = [size for size in events if size > 0]
    temporary, after_output = 0, False
    for number, size in enumerate(requests, 1):
        if number in outputs:
            after_output = True
        elif after_output:
            temporary = size
    return temporary


def described(cases: Columns) -> Columns:
    """The convolution whose gradient or value a transposed one computes: `input` is its larger side."""
    c = {name: cases[name].astype(float) for name in FIELDS if name not in ("dtype", "layout")}
    reach = c["dilation"] * (c["kernel"] - 1) + 1
    transposed = cases["transposed"]
    out_size = np.where(
        transposed,
        (c["size"] - 1) * c["stride"] - 2 * c["padding"] + reach,
        (c["size"] + 2 * c["padding"] - reach) // c["stride"] + 1,
    )
    c["in"], c["out"] = np.where(transposed, (c["out"], c["channels"]), (c["channels"], c["out"]))
    sides = np.where(transposed, (out_size, c["size"]), (c["size"], out_size))
    c["in_area"], c["out_area"] = sides[0] ** c["dims"], sides[1] ** c["dims"]
    for name, r in (("winograd_4", 4), ("winograd_2", 2)):
        c[name] = np.where(c["dims"] == 2, np.ceil(sides[1] / r) ** 2, 0)
    c["taps"] = c["kernel"] ** c["dims"]
    c["item"] = np.select([cases["dtype"] == "float64", cases["dtype"] == "float32"], [8.0, 4.0], 2.0)
    c["bfloat16"] = (cases["dtype"] == "bfloat16").astype(float)
    c["channels_last"] = (cases["layout"] != "contiguous").astype(float)
    return c


def up(a: Array, multiple: int | Array) -> Array:
    return np.ceil(a / multiple) * multiple


def sizes(c: Columns, pad: int | Array = 1) -> dict[int, Array]:
    """The bytes of the tensors, with padded channels unless there are groups."""
    first, second = (np.where(c["groups"] == 1, up(c[name], pad), c[name]) for name in ("in", "out"))
    return {
        INPUT: c["batch"] * first * c["in_area"] * c["item"],
        WEIGHT: first * second / c["groups"] * c["taps"] * c["item"],
        OUTPUT: c["batch"] * second * c["out_area"] * c["item"],
    }


def features(c: Columns) -> Columns:
    """What the trees look at; the order and the arithmetic are those of the C++ file."""
    bytes_of = sizes(c)
    first, second = c["in"] / c["groups"], c["out"] / c["groups"]
    positions, in_positions = c["batch"] * c["out_area"], c["batch"] * c["in_area"]
    multiples = [np.minimum(n.astype(int) & -n.astype(int), 16).astype(float) for n in (first, second)]
    return {
        "dims": c["dims"], "batch": c["batch"], "channels": first, "out": second, "groups": c["groups"],
        "in area": c["in_area"], "out area": c["out_area"], "kernel": c["kernel"], "stride": c["stride"],
        "padding": c["padding"], "dilation": c["dilation"], "multiple in": multiples[0], "multiple out": multiples[1],
        "positions": positions, "in positions": in_positions, "window": first * c["taps"],
        "out window": second * c["taps"], "input": bytes_of[INPUT], "weight": bytes_of[WEIGHT],
        "output": bytes_of[OUTPUT], "products": positions * c["in"] * second * c["taps"],
        "products of a tap": positions * c["in"] * second, "in products": in_positions * c["in"] * second,
        "channels last": c["channels_last"], "bfloat16": c["bfloat16"], "item": c["item"],
        "transposed": c["transposed"],
        "weight tiles": c["taps"] * np.ceil(first / 64) * np.ceil(second / 64),
        "out tiles": np.ceil(positions / 128) * np.ceil(second / 64),
        "in tiles": np.ceil(in_positions / 128) * np.ceil(first / 64),
        "matrix tiles": np.ceil(second / 128) * np.ceil(first * c["taps"] / 128),
        "per byte": positions * c["in"] * second * c["taps"] / (bytes_of[INPUT] + bytes_of[OUTPUT]),
    }  # fmt: skip


def copied(c: Columns, parts: int, pad: int) -> Array:
    """In channels-last halves, copies of one operand and the weight have at least four channels: an image of three."""
    zero, padding = np.zeros_like(c["batch"]), np.full_like(c["batch"], pad)
    if parts in (INPUT | WEIGHT, WEIGHT | OUTPUT):
        padding = np.where((c["item"] == 2) & (c["channels_last"] > 0), max(pad, 4), padding)
    return sum((size for part, size in sizes(c, padding).items() if parts & part), zero)


def own_bytes(c: Columns, f: Formula) -> Array:
    bytes_of, accumulator = sizes(c), np.maximum(c["item"], 4)
    first, second, n = c["in"] / c["groups"], c["out"] / c["groups"], f.count
    if f.own == "counters":
        return 131 + 0 * c["item"]
    if f.own == "weights":
        return n * bytes_of[WEIGHT] / c["item"] * accumulator
    if f.own.startswith("padded"):
        pad = 4 if f.own.endswith("4") else 8
        return n * sizes(c, pad)[WEIGHT] / c["item"] * accumulator
    if f.own in ("inputs", "outputs"):
        return n * bytes_of[INPUT if f.own == "inputs" else OUTPUT] / c["item"] * accumulator
    if f.own == "blocks":
        return n * 65536 + 0 * c["item"]
    if f.own == "tiles":
        return n * np.ceil(second / f.rows) * np.ceil(first * c["taps"] / f.columns) * (f.rows * f.columns * 4)
    if f.own == "taps":
        return n * np.ceil(second / 64) * np.ceil(first / 64) * c["taps"] * 16384
    if f.own == "winograd":
        return 144 * (c["batch"] * c[f"winograd_{n}"] * (c["in"] + c["out"]) + c["in"] * c["out"])
    if f.own == "columns":
        return first * c["taps"] * c["out_area"] * c["item"]
    return 0 * c["item"]


def formulas(of_weight: bool) -> Iterator[Formula]:
    few = range(1, 18)
    more = (20, 22, 24, 26, 28, 29, 30, 31, 32, 33, 40, 43, 48, 56, 64, 69, 96, 110, 116, 128, 132, 148)
    own = [Formula(0, 1, "nothing", 0), Formula(0, 1, "columns", 0)]
    own += [Formula(0, 1, "winograd", n) for n in (2, 4)]
    own += [Formula(0, 1, "blocks", n) for n in (8, 16, 18, 27, 32, 33, 36, 40, 48, 54, 56, 64, 66, 72, 80, 84, 96,
            100, 108, 112, 120, 128, 132, 144, 160, 192, 256, 264)]  # fmt: skip
    own += [Formula(0, 1, kind, n) for kind in ("inputs", "outputs") for n in (*range(1, 9), 15, 16, 31)]
    own += [Formula(0, 1, "weights", n) for n in (*few, *more)]
    if of_weight:
        own += [Formula(0, 1, f"padded weights of {pad}", n) for pad in (4, 8) for n in (*few, *more)]
        own += [
            Formula(0, 1, "tiles", n, *tile)
            for tile in ((64, 128), (128, 128), (64, 256), (128, 256))
            for n in (*few, 20, 24, 29)
        ]
        own += [Formula(0, 1, "taps", n) for n in few]
    yield Formula(0, 1, "counters", 0)
    for parts, pad in COPIES:
        for f in own:
            yield f._replace(parts=parts, pad=pad)


def costs(c: Columns, f: Formula, taken: Array, total: Array) -> Array:
    value = copied(c, f.parts, f.pad) + own_bytes(c, f)
    off = np.abs(value - taken)
    exact = (off <= 1024) & ((value > 0) == (taken > 0))
    error = np.minimum(off / total, 3)
    return np.where(exact, np.minimum(error, EXACT), error + INEXACT).astype(np.float32)


def chosen_formulas(c: Columns, taken: Array, of_weight: bool) -> tuple[list[Formula], Array]:
    """The formulas that explain most cases, greedily, until one explains fewer than four more; and their costs."""
    total = sum(sizes(c).values())
    candidates = list(formulas(of_weight))
    exact = np.empty((len(candidates), len(taken)), bool)
    for row, f in zip(exact, candidates, strict=True):
        row[:] = costs(c, f, taken, total) <= EXACT * 1.01
    counts, left = exact.sum(1), np.ones(len(taken), bool)
    chosen: list[int] = []
    while len(chosen) < 200 and counts.max() >= 4:
        best = int(counts.argmax())
        chosen.append(best)
        newly = left & exact[best]
        left &= ~newly
        counts = counts - exact[:, newly].sum(1)
    return [candidates[i] for i in chosen], np.array([costs(c, candidates[i], taken, total) for i in chosen]).T


# A leaf is the number of a formula; an inner node a feature, a threshold, and the nodes at or below and above it.
Node = int | tuple[int, float, "Node", "Node"]


def entropy(counts: Array) -> Array:
    """Summed over the cases, in nats; the last axis has the classes."""
    return (-counts * np.log(np.maximum(counts, 1e-12))).sum(-1) + (
        counts.sum(-1) * np.log(np.maximum(counts.sum(-1), 1e-12))
    )


def grown(values: list[Array], cost: Array, weight: Array) -> Node:
    """A tree by entropy, in which a node with children must save COST_OF_LEAF for each leaf.

    A leaf has the formula of least mean cost, in which the mean of the nodes above counts as one more case: of formulas
    that fit a few cases, one that is far off for their neighbours is not taken.
    """
    cost = cost * weight[:, None]
    edges = []
    for value in values:
        unique = np.unique(value)
        if len(unique) > 200:
            unique = np.unique(np.quantile(value, np.linspace(0, 1, 201), method="nearest"))
        edges.append((unique[1:] + unique[:-1]) / 2)
    bins = [np.searchsorted(e, value) for e, value in zip(edges, values, strict=True)]
    exact = cost <= EXACT * 1.01 * weight[:, None]
    labels = np.where(exact.any(1), exact.argmax(1), cost.argmin(1))

    def build(rows: Array, depth: int, above_mean: Array) -> tuple[Node, float, int]:
        sums = cost[rows].sum(0, dtype=float)
        mean = (sums + above_mean) / (weight[rows].sum() + 1)
        leaf = int(mean.argmin())
        here = float(sums[leaf])
        kinds, kind = np.unique(labels[rows], return_inverse=True)
        if depth == MOST_DEPTH or len(rows) < 2 * LEAST_IN_LEAF or len(kinds) == 1 or here <= COST_OF_LEAF:
            return leaf, here, 1
        best, where = 1e-9, (-1, 0)
        for index in range(len(values)):
            b = bins[index][rows]
            low, count = b.min(), b.max() - b.min() + 1
            if count == 1:
                continue
            at_or_below = np.cumsum(np.bincount(b - low, minlength=count))[:-1]
            cells = np.bincount((b - low) * len(kinds) + kind, weight[rows], count * len(kinds))
            below = np.cumsum(cells.reshape(count, -1), 0)
            above = below[-1] - below[:-1]
            gain = entropy(below[-1]) - entropy(below[:-1]) - entropy(above)
            gain[(at_or_below < LEAST_IN_LEAF) | (len(rows) - at_or_below < LEAST_IN_LEAF)] = -1
            at = int(gain.argmax())
            if gain[at] > best:
                best, where = float(gain[at]), (index, int(low + at))
        if where[0] < 0:
            return leaf, here, 1
        index, at = where
        is_below = bins[index][rows] <= at
        a, cost_a, leaves_a = build(rows[is_below], depth + 1, mean)
        b, cost_b, leaves_b = build(rows[~is_below], depth + 1, mean)
        if cost_a + cost_b + COST_OF_LEAF * (leaves_a + leaves_b - 1) >= here:
            return leaf, here, 1
        return (index, float(edges[index][at]), a, b), cost_a + cost_b, leaves_a + leaves_b

    return build(np.arange(len(labels)), 0, cost.mean(0, dtype=float))[0]


def predicted(node: Node, values: list[Array]) -> Array:
    result = np.zeros(len(values[0]), int)

    def walk(node: Node, rows: Array) -> None:
        if isinstance(node, int):
            result[rows] = node
            return
        index, threshold, below, above = node
        is_below = values[index][rows] <= threshold
        walk(below, rows[is_below])
        walk(above, rows[~is_below])

    walk(node, np.arange(len(result)))
    return result


def leaves(node: Node) -> int:
    return 1 if isinstance(node, int) else leaves(node[2]) + leaves(node[3])


def flattened(node: Node, numbers: dict[int, int]) -> list[str]:
    """Parents before children, the smaller side first; a leaf has no feature."""
    if isinstance(node, int):
        return [f"{{-1, {numbers[node]}, 0}},"]
    below, above = flattened(node[2], numbers), flattened(node[3], numbers)
    return [f"{{{node[0]}, {node[1]!r}, {len(below) + 1}}},", *below, *above]


def groups(cases: Columns) -> Iterator[tuple[int, int, str, Array]]:
    """Pass, arithmetic, the name of the workspace's column, and the rows."""
    half = np.isin(cases["dtype"], ("float16", "bfloat16"))
    tf32 = (cases["dtype"] == "float32") & cases["tf32"]
    for number, name in enumerate(PASSES):
        for kind, rows in enumerate((half, tf32, ~half & ~tf32)):
            # The forward pass of a transposed convolution is another's gradient.
            taken = np.full(len(half), name, object)
            swapped = {"forward": "input gradient", "input gradient": "forward"}.get(name, name)
            taken[cases["transposed"]] = swapped
            yield number, kind, name, rows


def workspace_of(cases: Columns, taken: Columns, name: str) -> Array:
    swapped = {"forward": "input gradient", "input gradient": "forward"}.get(name, name)
    return np.where(cases["transposed"], taken[swapped], taken[name])


def fitted(cases: Columns, taken: Columns, errors: bool) -> str:
    c = described(cases)
    all_features = features(c)
    known = {tuple(case) for case in of_networks()}
    rows_of_cases = list(zip(*(column.tolist() for column in cases.values()), strict=True))
    weights = np.array([WEIGHT_OF_NETWORKS if case in known else 1 for case in rows_of_cases], float)
    fold = np.array([zlib.crc32(repr(case).encode()) % 5 for case in rows_of_cases])
    lines: list[str] = []
    table: dict[Formula, int] = {}
    if errors:
        print("| pass | arithmetic | cases | | leaves | exact | median | 90 % | mean |")
        print("|---|---|---|---|---|---|---|---|---|")
    for number, kind, name, rows in groups(cases):
        mine = {key: column[rows] for key, column in c.items()}
        values = [column[rows] for column in all_features.values()]
        wanted = workspace_of(cases, taken, name)[rows]
        chosen, cost = chosen_formulas(mine, wanted, of_weight=number == 2)
        if errors:
            report(name, ARITHMETIC[kind], values, cost, fold[rows], weights[rows])
            continue
        tree = grown(values, cost, weights[rows])
        numbers = {i: table.setdefault(f, len(table)) for i, f in enumerate(chosen)}
        lines += [f"// {name}, {ARITHMETIC[kind]}", f"constexpr Node kTree{number}{kind}[] = {{"]
        lines += [*flattened(tree, numbers), "};"]
        print(name, ARITHMETIC[kind], leaves(tree), "leaves", flush=True)
    head = [
        f"// Written by tools/fit_convolutions.py from {len(rows_of_cases):,} convolutions on an H200 (PyTorch 2.11,",
        "// cuDNN 9.19): the formulas, and trees that choose one. See convolution_workspace.cpp.",
        "constexpr Formula kFormulas[] = {",
        *(f"{{{f.parts}, {f.pad}, {OWN.index(f.own)}, {f.count}, {f.rows}, {f.columns}}}," for f in table),
        "};",
    ]
    return "\n".join(packed([*head, *lines])) + "\n"


def packed(lines: list[str]) -> list[str]:
    """Several rows of data in a line."""
    result: list[str] = []
    for line in lines:
        if line.startswith("{") and result and result[-1].startswith("{") and len(result[-1]) + len(line) < 118:
            result[-1] += " " + line
        else:
            result.append(line)
    return result


def report(name: str, kind: str, values: list[Array], cost: Array, fold: Array, weight: Array) -> None:
    """Each fifth is predicted by a tree grown on the other four."""
    found, count = np.empty(len(fold)), 0
    for part in range(5):
        test = fold == part
        tree = grown([v[~test] for v in values], cost[~test], weight[~test])
        count += leaves(tree)
        at = predicted(tree, [v[test] for v in values])
        found[test] = cost[test][np.arange(len(at)), at]
    exact = found <= EXACT * 1.01
    off = np.where(exact, 0, found - INEXACT)
    for title, rows in (("all", weight > 0), ("of networks", weight > 1)):
        part_off = off[rows]
        figures = [exact[rows].mean(), np.median(part_off), np.quantile(part_off, 0.9), part_off.mean()]
        print(f"| {name} | {kind} | {title} | {rows.sum()} | {count // 5} |",
              " | ".join(f"{100 * x:.1f} %" for x in figures), "|", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", type=Path, nargs="+")
    parser.add_argument("--errors", action="store_true")
    options = parser.parse_args()
    cases, taken = read(options.recordings)
    text = fitted(cases, taken, options.errors)
    if not options.errors:
        TABLE.write_text(text)


if __name__ == "__main__":
    main()
