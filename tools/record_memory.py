"""Records the memory that workloads and single operators take on a real card, by phase and by operator.

    python tools/record_memory.py --out FOLDER --seconds 380          # all, in a process each, several at a time
    python tools/record_memory.py --out FOLDER --seconds 60 NAME...   # some of them
    python tools/record_memory.py --out FOLDER --seconds 420 --fresh  # fresh*.py, last.py, published.py, layers

A workload runs twice, in two processes: once unchanged, for its figures (figures.json.gz, for tests/memory/recorded);
once under a dispatch mode that records which operator allocated and freed which blocks (labelled.json.gz). Grids of
single calls run only under the mode, as far as the time goes (convolutions.jsonl.gz and others; see single_calls.py).
What is done is written every 45 seconds.
"""

from __future__ import annotations

import argparse
import gzip
import json
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "memory"))
sys.path.insert(0, str(Path(__file__).parent))
from fresh import FRESH, FRESH_LIMITED, load
from held_out import HELD_OUT, LIMITED
from last import LAST
from later import LATER, LATER_LIMITED
from operator_grid import GROUPS
from published import PUBLISHED
from single_calls import SECTIONS, Labels, record_section
from workloads import WORKLOADS

load()
PROGRAMS = WORKLOADS | HELD_OUT | LATER | FRESH | LAST | PUBLISHED
LIMITS = {f"{name}_recorded": case for name, case in LIMITED.items()} | LATER_LIMITED | FRESH_LIMITED


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
    PROGRAMS[name](phase)
    torch.cuda.synchronize()
    phase("end")
    free_after, _ = torch.cuda.mem_get_info()
    return {
        "phases": phases,
        "seconds": time.time() - began,
        "free": [free_before, free_after, total],
        "stats": torch.cuda.memory_stats(),
    }


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
    for func, arguments, outputs, start, stop, _ in labels.calls:
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


def within_limit(name: str, batch: int) -> dict:
    run, limit, _ = LIMITS[name]
    torch.cuda.set_per_process_memory_fraction(limit * 2**20 / torch.cuda.get_device_properties(0).total_memory)
    try:
        run(batch)
        fits = True
    except torch.OutOfMemoryError:
        fits = False
    return {"fits": fits, "figures": figures()}


def record(name: str) -> dict:
    kind, which, *rest = name.split(":")
    if kind == "contexts":
        return contexts()
    if kind == "plain":
        return plain(which)
    if kind == "fits":
        return within_limit(which, int(rest[0]))
    if kind == "labelled":
        phases = []

        def run(labels: Labels) -> None:
            def phase(label: str) -> None:
                phases.append([label, *figures(), len(labels.calls)])
                torch.cuda.reset_peak_memory_stats()

            PROGRAMS[which](phase)

        return labelled(run) | {"phases": phases}
    errors = []

    def run_group(labels: Labels) -> None:
        for i, call in enumerate(GROUPS[which]()):
            try:
                call()
            except Exception as error:
                if len(errors) < 50:
                    errors.append([i, repr(error)[:300]])

    return labelled(run_group) | {"errors": errors}


def child(name: str, parts: Path, until: float) -> None:
    """In a process of its own. A grid appends to its file; others write theirs at the end."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    path = parts / (name.replace(":", "-").replace("/", "_") + ".jsonl")
    result = {"name": name, "torch": torch.__version__, "cudnn": torch.backends.cudnn.version()}
    began = time.time()
    try:
        result["card"] = torch.cuda.get_device_name(0)
        if name.startswith("calls:"):
            _, section, share = name.split(":")
            shard, shards = map(int, share.split("/"))
            result |= record_section(section, shard, shards, path, until)
        else:
            result |= record(name)
    except Exception:
        result["error"] = traceback.format_exc()
    result["took"] = round(time.time() - began, 2)
    with path.open("a") as file:
        file.write(json.dumps(result, separators=(",", ":")) + "\n")


def starting_context() -> multiprocessing.context.BaseContext:
    """Forks of this process, which has imported everything, unless the card cannot be used in one."""
    fork = multiprocessing.get_context("fork")
    probe = fork.Process(target=torch.cuda.init)
    probe.start()
    probe.join(60)
    if probe.exitcode == 0:
        return fork
    probe.kill()
    print("no card in a fork: processes are started afresh", flush=True)
    return multiprocessing.get_context("spawn")


def fresh_jobs() -> list[tuple[str, float]]:
    names = [f"plain:{name}" for name in FRESH]
    names += [f"fits:{name}:{batch}" for name, case in FRESH_LIMITED.items() for batch in case[2]]
    names += [f"plain:{name}" for name in LAST | PUBLISHED]
    names += [f"labelled:{name}" for name in FRESH | LAST | PUBLISHED]
    _, shards, seconds = SECTIONS["layers"]
    return [(name, 60.0) for name in names] + [(f"calls:layers:{i}/{shards}", seconds) for i in range(shards)]


def jobs() -> list[tuple[str, float]]:
    """Names with the seconds that each may take, the most important first."""
    names = [(f"plain:{name}", 60.0) for name in LATER]
    names += [(f"fits:{name}:{batch}", 60.0) for name, case in LATER_LIMITED.items() for batch in case[2]]
    names += [
        (f"calls:{section}:{i}/{shards}", seconds)
        for section, (_, shards, seconds) in SECTIONS.items()
        for i in range(shards)
    ]
    names += [(f"labelled:{name}", 60.0) for name in LATER | WORKLOADS | HELD_OUT]
    names += [(f"group:{name}", 100.0) for name in GROUPS]
    names += [(f"plain:{name}", 40.0) for name in HELD_OUT | WORKLOADS]
    return names


def merge(parts: Path, out: Path) -> None:
    """One file for each grid; figures and limits in one; programs and groups by operator in one."""
    files: dict[str, list[Path]] = {}
    for path in sorted(parts.iterdir()):
        kind, _, rest = path.stem.partition("-")
        title = {"calls": rest.partition("-")[0], "labelled": "labelled", "group": "labelled"}.get(kind, "figures")
        files.setdefault(title, []).append(path)
    for title, paths in files.items():
        with gzip.GzipFile(str(out / f"{title}.jsonl.gz"), "wb", compresslevel=5, mtime=0) as packed:
            for path in paths:
                packed.write(path.read_bytes())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=380.0, help="for everything, including writing")
    parser.add_argument("--workers", type=int, default=18)
    parser.add_argument("--fresh", action="store_true", help="only fresh*.py, last.py, published.py and layers")
    parser.add_argument("names", nargs="*", help="kind:name, such as plain:vgg_sgd or calls:recurrent:0/2")
    options = parser.parse_args()
    began = time.time()
    deadline = began + options.seconds - min(20.0, options.seconds / 4)
    options.out.mkdir(parents=True, exist_ok=True)
    parts = Path(tempfile.mkdtemp(prefix="record_memory"))
    pending = [(name, options.seconds) for name in options.names] or (fresh_jobs() if options.fresh else jobs())
    total, finished, last_merge = len(pending), 0, began
    running: dict[str, tuple[multiprocessing.process.BaseProcess, float]] = {}
    context = starting_context()
    while (pending or running) and time.time() < deadline + 4:
        while pending and len(running) < options.workers and time.time() < deadline - 3:
            name, seconds = pending.pop(0)
            until = min(time.time() + seconds, deadline)
            process = context.Process(target=child, args=(name, parts, until))
            process.start()
            running[name] = process, until
        for name, (process, until) in list(running.items()):
            if process.is_alive() and time.time() > until + 8:
                print("stopped:", name, flush=True)
                process.kill()
                process.join()
            if not process.is_alive():
                if process.exitcode:
                    print("exit code", process.exitcode, name, flush=True)
                del running[name]
                finished += 1
        if time.time() - last_merge > 45:
            merge(parts, options.out)
            last_merge = time.time()
            print(f"{last_merge - began:.0f} s: {finished} of {total} finished", *running, flush=True)
        time.sleep(0.05)
    for name, (process, _) in running.items():
        print("not finished:", name)
        process.kill()
    merge(parts, options.out)
    print(f"{finished} of {total} finished, {len(pending)} not begun, {time.time() - began:.0f} s", flush=True)
    for path in sorted(parts.iterdir()):
        try:
            last = json.loads(path.read_text().splitlines()[-1])
        except (ValueError, IndexError):
            last = {"error": "cut off"}
        error = str(last.get("error", "")).strip().splitlines()[-1:] + last.get("problems", [])
        if error or "done" in last:
            print(path.stem, last.get("took", ""), last.get("done", ""), *error[:3])


if __name__ == "__main__":
    main()
