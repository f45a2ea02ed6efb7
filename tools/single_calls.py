"""Records the allocations of single calls over the grids of tests/memory; a part of record_memory.py.

A line of a file is one case: {"case": [...], "calls": [[operator, arguments, outputs, events, blocks], ...]}. Events
are in order: a number above zero is a request of so many bytes, -k frees the k-th request of the call, and 0 frees a
block from before. Blocks are the numbers of the requests (from 1) that became the outputs, 0 for other memory. Calls
that only make inputs are left out. "again" is a second pass, where it differs. The last line of a process sums up.
"""

from __future__ import annotations

import gc
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "memory"))
import algebra_grid
import attention_grid
import convolution_grid
import more_operators
import recurrent_grid

Calls = Iterator[tuple[object, Callable[[], object]]]

#: By name: the calls, the number of processes, and the seconds of each.
SECTIONS: dict[str, tuple[Callable[[], Calls], int, float]] = {
    "convolutions": (convolution_grid.calls, 6, 340.0),
    "layers": (convolution_grid.layer_calls, 8, 340.0),
    "benchmarked": (convolution_grid.benchmarked_calls, 11, 200.0),
    "deterministic": (convolution_grid.deterministic_calls, 4, 90.0),
    "recurrent": (recurrent_grid.calls, 2, 260.0),
    "attention": (attention_grid.calls, 1, 200.0),
    "operators": (more_operators.calls, 3, 150.0),
    "algebra": (algebra_grid.calls, 3, 150.0),
}

#: They make the inputs of the calls of interest.
INPUTS = (
    "aten.empty", "aten.zeros", "aten.ones", "aten.randn", "aten.rand.", "aten.randint", "aten.eye", "aten.new_empty",
    "aten.set_",
)  # fmt: skip

MOST_RESERVED = 5 << 30


def described(value) -> str:
    if torch.is_tensor(value):
        kind = str(value.dtype).removeprefix("torch.")
        if value.layout != torch.strided:
            return f"{kind}[{','.join(map(str, value.shape))}]{str(value.layout).removeprefix('torch.')}"
        where = "" if value.is_cuda else f"@{value.device.type}"
        dense = "" if value.is_contiguous() else f"/{','.join(map(str, value.stride()))}"
        return f"{kind}[{','.join(map(str, value.shape))}{dense}]{where}"
    if isinstance(value, (list, tuple)):
        inner = [described(v) for v in value]
        if len(inner) > 8:
            inner = [*inner[:8], f"...{len(inner)}"]
        return f"[{' '.join(inner)}]"
    return str(value).removeprefix("torch.")


def place_of(output: object) -> int:
    """The address of a tensor's storage on the card, 0 for anything else."""
    if torch.is_tensor(output) and output.layout == torch.strided and output.is_cuda:
        return output.untyped_storage().data_ptr()
    return 0


class Labels(TorchDispatchMode):
    """Records where each operator begins and ends in the allocator's trace, and where its outputs lie."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, str, str, int, int, list[int]]] = []

    @staticmethod
    def position() -> int:
        stats = torch.cuda.memory_stats_as_nested_dict()["allocation"]["all"]
        return stats["allocated"] + stats["freed"]

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        begin = self.position()
        out = func(*args, **(kwargs or {}))
        end = self.position()
        if end != begin:
            arguments = " ".join(map(described, args))
            for key, value in (kwargs or {}).items():
                arguments += f" {key}={described(value)}"
            outputs = tree_flatten(out)[0]
            places = [place_of(o) for o in outputs]
            self.calls.append((str(func), arguments, " ".join(map(described, outputs)), begin, end, places))
        return out


def events_of(trace: list[dict], start: int, stop: int, places: list[int]) -> tuple[list[int], list[int]]:
    """The events of one call and the requests that became its outputs."""
    events, alive, count = [], {}, 0
    for entry in trace[start:stop]:
        if entry["action"] == "alloc":
            count += 1
            alive[entry["addr"]] = count
            events.append(entry["size"])
        else:
            events.append(-alive.pop(entry["addr"], 0))
    return events, [alive.get(place, 0) for place in places]


def record_chunk(chunk: list[tuple[object, Callable[[], object]]], repeats: int, until: float) -> list[dict]:
    gc.collect()
    torch.cuda.memory._record_memory_history(None)
    torch.cuda.memory._record_memory_history("all", context=None, stacks="python", max_entries=4_000_000)
    results, ends = [], []
    first = Labels.position()
    with Labels() as labels:
        for label, call in chunk:
            if time.time() > until:
                break
            result: dict = {"case": label}
            ooms = torch.cuda.memory_stats_as_nested_dict()["num_ooms"]
            passes = [len(labels.calls)]
            for _ in range(repeats):
                try:
                    call()
                except Exception as error:
                    result["error"] = f"{type(error).__name__}: {error}"[:200]
                passes.append(len(labels.calls))
            if torch.cuda.memory_stats_as_nested_dict()["num_ooms"] != ooms:
                result["out_of_memory"] = True
            results.append(result)
            ends.append(passes)
            if torch.cuda.memory_reserved() > MOST_RESERVED:
                torch.cuda.empty_cache()
    torch.cuda.synchronize()
    # The last entries: the history may not begin with this chunk.
    trace = [e for e in torch.cuda.memory._snapshot()["device_traces"][0] if e["action"] in ("alloc", "free_completed")]
    shift = len(trace) - Labels.position()
    if shift + first < 0:
        raise RuntimeError(f"the history has {len(trace)} events, the statistics {Labels.position() - first}")
    for result, passes in zip(results, ends, strict=True):
        found = []
        for begin, end in itertools.pairwise(passes):
            calls = [
                [func, arguments, outputs, *events_of(trace, start + shift, stop + shift, places)]
                for func, arguments, outputs, start, stop, places in labels.calls[begin:end]
                if not func.startswith(INPUTS)
            ]
            if calls not in found:
                found.append(calls)
        result["calls"] = found[0]
        if len(found) > 1:
            result["again"] = found[1]
    return results


def record_section(name: str, shard: int, shards: int, path: Path, until: float) -> dict:
    """Records every `shards`-th call until that time, and appends to the file after each chunk."""
    calls, _, _ = SECTIONS[name]
    repeats = 2 if name in ("operators", "algebra") else 1
    mine = itertools.islice(calls(), shard, None, shards)
    done, began = 0, time.time()
    size = 4
    problems: list[str] = []
    while time.time() < until and (chunk := list(itertools.islice(mine, size))):
        chunk_began = time.time()
        try:
            results = record_chunk(chunk, repeats, until)
        except Exception as error:
            problems.append(f"{done}: {type(error).__name__}: {error}"[:300])
            results = []
            if len(problems) > 20:
                break
        with path.open("a") as file:
            file.writelines(json.dumps(result, separators=(",", ":")) + "\n" for result in results)
        done += len(results)
        # About three seconds each.
        size = max(2, min(150, int(size * 3 / max(time.time() - chunk_began, 0.02))))
    return {"done": done, "seconds": round(time.time() - began, 1), "problems": problems}
