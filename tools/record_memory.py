"""Records the memory that workloads and single operators take on a real card, by phase and by operator.

    OUT=folder python tools/record_memory.py          # in a process each, several at a time
    OUT=folder python tools/record_memory.py NAME     # one of them

A workload runs twice, in two processes: once unchanged, for its figures (workloads.json.gz, for tests/memory/recorded);
once under a dispatch mode that records which operator allocated and freed which blocks. Groups of single operators run
only under the mode.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import time
import traceback
from pathlib import Path

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

if (Path(__file__).parents[1] / "tests" / "memory").exists():
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "memory"))
from operator_grid import GROUPS
from workloads import WORKLOADS

PARTS = "/tmp/record_memory"


def figures() -> list[int]:
    return [
        torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated(),
        torch.cuda.memory_reserved(), torch.cuda.max_memory_reserved(),
    ]  # fmt: skip


def plain(name: str) -> dict:
    """The workload unchanged: [allocated, its peak, reserved, its peak] of every phase."""
    phases = []

    def phase(label: str) -> None:
        torch.cuda.synchronize()
        phases.append([label, *figures()])
        torch.cuda.reset_peak_memory_stats()

    free_before, total = torch.cuda.mem_get_info()
    began = time.time()
    WORKLOADS[name](phase)
    torch.cuda.synchronize()
    phase("end")
    free_after, _ = torch.cuda.mem_get_info()
    return {
        "phases": phases,
        "seconds": time.time() - began,
        "free": [free_before, free_after, total],
        "stats": torch.cuda.memory_stats(),
    }


def described(value) -> str:
    if torch.is_tensor(value):
        kind = str(value.dtype).removeprefix("torch.")
        where = "" if value.is_cuda else f"@{value.device.type}"
        dense = "" if value.is_contiguous() else f"/{','.join(map(str, value.stride()))}"
        return f"{kind}[{','.join(map(str, value.shape))}{dense}]{where}"
    if isinstance(value, (list, tuple)):
        inner = [described(v) for v in value]
        if len(inner) > 8:
            inner = [*inner[:8], f"...{len(inner)}"]
        return f"[{' '.join(inner)}]"
    return str(value).removeprefix("torch.")


class Labels(TorchDispatchMode):
    """Records where each operator begins and ends in the allocator's trace."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, str, str, int, int]] = []
        self.depth = 0

    @staticmethod
    def position() -> int:
        stats = torch._C._cuda_memoryStats(0)["allocation"]["all"]
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
            self.calls.append((str(func), arguments, " ".join(map(described, outputs)), begin, end))
        return out


def labelled(run) -> dict:
    """[operator, arguments, outputs, [sizes allocated (+), freed (-), with the block's index]] of every call."""
    torch.cuda.init()
    torch.cuda.memory._record_memory_history(max_entries=10_000_000, context=None, stacks="python")
    begin = Labels.position()
    with Labels() as labels:
        run(labels)
    torch.cuda.synchronize()
    trace = torch.cuda.memory._snapshot()["device_traces"][0]
    events, born = [], {}
    for entry in trace:
        if entry["action"] == "alloc":
            born[entry["addr"]] = len(events)
            events.append((entry["size"], -1))
        elif entry["action"] == "free_completed":
            events.append((-entry["size"], born.pop(entry["addr"], -1)))
    strings: dict[str, int] = {}

    def interned(text: str) -> int:
        return strings.setdefault(text, len(strings))

    calls = []
    last = begin
    for func, arguments, outputs, start, stop in labels.calls:
        between = [[size, index] for size, index in events[last - begin : start - begin]]
        inside = [
            [size, index - (start - begin) if index >= start - begin else -1]
            for size, index in events[start - begin : stop - begin]
        ]
        if between:
            calls.append([-1, [size for size, _ in between]])
        calls.append([interned(func), interned(arguments), interned(outputs), inside])
        last = stop
    return {"strings": list(strings), "calls": calls}


def record(name: str) -> dict:
    kind, _, which = name.partition(":")
    result = {"name": name, "torch": torch.__version__, "card": torch.cuda.get_device_name(0)}
    if kind == "plain":
        return result | plain(which)
    if kind == "labelled":
        phases = []

        def run(labels: Labels) -> None:
            def phase(label: str) -> None:
                phases.append([label, *figures(), len(labels.calls)])
                torch.cuda.reset_peak_memory_stats()

            WORKLOADS[which](phase)

        return result | labelled(run) | {"phases": phases}
    errors = []

    def run_group(labels: Labels) -> None:
        for i, call in enumerate(GROUPS[which]()):
            try:
                call()
            except Exception as error:
                if len(errors) < 50:
                    errors.append([i, repr(error)[:300]])
            torch.cuda.synchronize()

    return result | labelled(run_group) | {"errors": errors}


def contexts() -> dict:
    steps = []

    def note(label: str) -> None:
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        steps.append([label, free, total, torch.cuda.memory_allocated(), torch.cuda.memory_reserved()])

    torch.cuda.init()
    note("init")
    x = torch.zeros(1, device="cuda")
    note("first kernel")
    a = torch.randn(1024, 1024, device="cuda")
    a @ a
    note("cublas")
    torch.nn.functional.linear(a, a, a[0])
    note("cublaslt")
    b = a.bfloat16()
    b @ b
    torch.nn.functional.linear(b, b, b[0])
    note("bf16")
    s = torch.cuda.Stream()
    with torch.cuda.stream(s):
        a @ a
        note("cublas on a stream")
        torch.nn.functional.linear(a, a, a[0])
        note("cublaslt on a stream")
    torch.nn.functional.conv2d(torch.randn(8, 64, 56, 56, device="cuda"), torch.randn(64, 64, 3, 3, device="cuda"))
    note("cudnn")
    q = torch.randn(2, 8, 128, 64, device="cuda", dtype=torch.bfloat16)
    torch.nn.functional.scaled_dot_product_attention(q, q, q)
    note("attention")
    torch.fft.fft(a)
    note("cufft")
    torch.linalg.inv(a)
    note("cusolver")
    a.sort()
    torch.randperm(1000, device="cuda")
    note("rest")
    del x
    return {
        "steps": steps,
        "properties": str(torch.cuda.get_device_properties(0)),
        "cudnn": torch.backends.cudnn.version(),
        "cuda": torch.version.cuda,
        "env": {k: v for k, v in os.environ.items() if "CUBLAS" in k or "CUDNN" in k or "ALLOC" in k},
    }


def main() -> None:
    os.makedirs(PARTS, exist_ok=True)
    if len(sys.argv) == 2:
        name = sys.argv[1]
        try:
            result = {"name": name} | contexts() if name == "contexts" else record(name)
        except Exception:
            result = {"name": name, "error": traceback.format_exc()}
        Path(PARTS, name.replace(":", "_") + ".json").write_text(json.dumps(result))
        return
    names = [
        "contexts",
        *(f"group:{g}" for g in GROUPS),
        *(f"plain:{w}" for w in WORKLOADS),
        *(f"labelled:{w}" for w in WORKLOADS),
    ]
    limit = float(os.environ.get("SECONDS_LIMIT", "480"))
    began = time.time()
    pending, running = list(names), {}
    # Runs the first one by itself: it reads how much of the card is free.
    subprocess.run([sys.executable, __file__, pending.pop(0)], timeout=120, check=False)
    while (pending or running) and time.time() - began < limit:
        while pending and len(running) < 10:
            name = pending.pop(0)
            running[name] = subprocess.Popen(
                [sys.executable, __file__, name], env=os.environ | {"OMP_NUM_THREADS": "2"}
            )
        for name in [n for n, process in running.items() if process.poll() is not None]:
            del running[name]
        time.sleep(0.05)
    for name, process in running.items():
        print("not finished:", name)
        process.kill()
    sections: dict[str, list] = {"group": [], "plain": [], "labelled": []}
    for name in names:
        path = Path(PARTS, name.replace(":", "_") + ".json")
        result = json.loads(path.read_text()) if path.exists() else {"name": name, "error": "no result"}
        print(name, result.get("error", "ok"), len(result.get("errors", [])), result.get("seconds", ""))
        sections.setdefault(name.split(":")[0], []).append(result)
    plain_results = [r for r in sections["plain"] if "phases" in r]
    figures_of_all = {
        "torch": torch.__version__,
        "card": torch.cuda.get_device_name(0),
        "workloads": {r["name"].partition(":")[2]: {"phases": r["phases"]} for r in plain_results},
    }
    with gzip.GzipFile(f"{os.environ['OUT']}/workloads.json.gz", "wb", mtime=0) as packed:
        packed.write(json.dumps(figures_of_all, separators=(",", ":")).encode())
    for section, results in sections.items():
        with gzip.open(f"{os.environ['OUT']}/{section}.json.gz", "wt") as file:
            json.dump(results, file)
    print("seconds", time.time() - began)


if __name__ == "__main__":
    main()
