"""Records how long operators, training steps and Python take on a real card. Needs PyTorch alone; run it on the card.

    python tools/record_step_time.py --out FOLDER [--seconds 470] [--quick]

The parts, each in a process of its own that is replaced when it breaks or hangs; all append to their file at once:

    host.jsonl              seconds that small operators, modules and optimizers take on the host (step_time_host.py)
    operators.jsonl         single calls (step_time_cases.py): seconds on the card and on the host, forward and backward
    programs.jsonl          steps of the programs in tests/memory: seconds of a step, and until everything was enqueued
    program_kernels.jsonl   every kernel of a step, with its operator
    operator_kernels.jsonl  every kernel of a single call

`fit_step_time.py` makes a recording of them that the package can use.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

sys.path.insert(0, str(Path(__file__).parent))
import step_time_programs as programs
from step_time_cases import all_cases, build
from step_time_host import host_cases, make_indices
from step_time_kernels import by_case, described, events_of, profiled, profiler

_LARGEST = 15 << 20  # bytes of a file
_QUIET = 45.0  # seconds without a sign of life, after which a part is replaced


def _synchronize() -> None:
    torch.cuda.synchronize()


class Folders(NamedTuple):
    """Where results go, and where a part notes what it has begun."""

    out: Path
    begun: Path


class Writer:
    """Appends results to a file, and knows which were begun before."""

    def __init__(self, folders: Folders, part: str) -> None:
        self._path = folders.out / f"{part}.jsonl"
        self._begun = folders.begun / part
        self._known = set(self._begun.read_text().splitlines()) if self._begun.exists() else set()

    def begin(self, key: str) -> bool:
        """False if it was begun before, even if it was never finished."""
        if key in self._known:
            return False
        self._known.add(key)
        with self._begun.open("a") as file:
            file.write(key + "\n")
        return True

    @property
    def size(self) -> int:
        return self._path.stat().st_size if self._path.exists() else 0

    def write(self, row: dict[str, Any]) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(row, separators=(",", ":")) + "\n")


def guarded(writer: Writer, key: str, row: dict[str, Any], work: Callable[[], dict[str, Any]]) -> None:
    """Writes the row with what `work` returns, or with its error. Ends the process if the card cannot go on."""
    try:
        row |= work()
    except Exception as error:
        row["error"] = f"{type(error).__name__}: {error}"[:500]
        writer.write(row)
        if "CUDA error" in str(error) or "device-side assert" in str(error):
            print("the card cannot go on:", row["error"], flush=True)
            os._exit(3)
        programs.released()
        return
    writer.write(row)


# ---- Timing ----------------------------------------------------------------------------------------------------------


def timed(call: Callable[[], Any], seconds: float = 0.006) -> dict[str, float]:
    """Median seconds of a call on the card and on the host. The queue of the card is filled before it starts."""
    call()
    _synchronize()
    begin = time.perf_counter()
    call()
    _synchronize()
    once = time.perf_counter() - begin
    count = int(min(60, max(2, seconds / max(once, 1e-6))))
    card, host = [], []
    for _ in range(3):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        # At about 1.8 GHz: as long as it takes to enqueue the calls.
        torch.cuda._sleep(int(min(once * count, 0.01) * 1.8e9))
        first.record()
        begin = time.perf_counter()
        for _ in range(count):
            call()
        host.append((time.perf_counter() - begin) / count)
        last.record()
        _synchronize()
        card.append(first.elapsed_time(last) / 1e3 / count)
        if once > 0.1:
            break
    return {"card": statistics.median(card), "host": statistics.median(host), "count": count}


def enqueued(call: Callable[[], Any], count: int = 200, repeats: int = 5) -> float:
    """Median seconds that a call takes on the host; the card does not hold it up."""
    for _ in range(3):
        call()
    _synchronize()
    found = []
    for _ in range(repeats):
        begin = time.perf_counter()
        for _ in range(count):
            call()
        found.append((time.perf_counter() - begin) / count)
        _synchronize()
    return statistics.median(found)


def directions(case: dict[str, Any]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The forward call of a case, and that of its backward pass."""
    call = build(case)
    yield "forward", call.run
    if call.leaves:
        output = call.run()
        gradient = torch.ones_like(output)
        yield "backward", lambda: torch.autograd.grad(output, call.leaves, gradient, retain_graph=True)


# ---- The host --------------------------------------------------------------------------------------------------------


def record_host(folders: Folders, until: float, quick: bool) -> None:
    writer = Writer(folders, "host")
    if writer.begin("machine"):
        guarded(writer, "machine", {"name": "machine"}, _machine)
    make_indices()
    for name, make in list(host_cases().items())[:: 9 if quick else 1]:
        if time.time() > until:
            return
        if writer.begin(name):

            def work(make: Any = make) -> dict[str, Any]:
                call, units = make()
                heavy = units > 5
                return {"seconds": enqueued(call, 20 if heavy else 150, 3 if heavy else 4), "units": units}

            guarded(writer, name, {"name": name}, work)


def _machine() -> dict[str, Any]:
    card = torch.cuda.get_device_properties(0)
    found = {
        "card": card.name, "torch": torch.__version__, "cuda": torch.version.cuda, "python": platform.python_version(),
        "cudnn": torch.backends.cudnn.version(), "cores": os.cpu_count(), "threads": torch.get_num_threads(),
        "activities": sorted(str(a) for a in torch.profiler.supported_activities()),
    }  # fmt: skip
    text = Path("/proc/cpuinfo").read_text()
    found["processor"] = next(
        (line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line), ""
    )
    return found


# ---- Operators -------------------------------------------------------------------------------------------------------


def record_operators(folders: Folders, until: float, quick: bool) -> None:
    writer = Writer(folders, "operators")
    x = torch.randn(4096, 4096, device="cuda")
    for _ in range(30):  # brings the card to its clock rate
        x @ x
    del x
    for index, case in enumerate(all_cases(quick)):
        if time.time() > until:
            return
        if not writer.begin(str(index)):
            continue

        def work(case: Any = case) -> dict[str, Any]:
            return {direction: timed(call) for direction, call in directions(case)}

        guarded(writer, str(index), {"index": index, "case": case}, work)
        if index % 50 == 0:
            programs.released()
        if index % 400 == 0:
            print(f"operators: {index} of {len(all_cases(quick))}", flush=True)


# ---- Programs --------------------------------------------------------------------------------------------------------


def _all_programs(quick: bool) -> list[tuple[str, str]]:
    found = [(kind, name) for kind, each in programs.SETS.items() for name in each]
    return found[::11] if quick else found


def _time_steps(step: Callable[[], None], quick: bool) -> dict[str, Any]:
    for _ in range(1 if quick else 4):
        step()
    _synchronize()
    begin = time.perf_counter()
    step()
    _synchronize()
    once = time.perf_counter() - begin
    count = 1 if quick else int(min(30, max(3, 0.15 / once)))
    wall, host, card = [], [], []
    for _ in range(1 if quick else 3):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        _synchronize()
        begin = time.perf_counter()
        first.record()
        for _ in range(count):
            step()
        host.append((time.perf_counter() - begin) / count)
        last.record()
        _synchronize()
        wall.append((time.perf_counter() - begin) / count)
        card.append(first.elapsed_time(last) / 1e3 / count)
    alone = []
    for _ in range(1 if quick else 5):
        begin = time.perf_counter()
        step()
        _synchronize()
        alone.append(time.perf_counter() - begin)
    return {"wall": wall, "host": host, "card": card, "alone": alone, "count": count}


def _time_whole(name: str, quick: bool) -> dict[str, Any]:
    wall, host = [], []
    for _ in range(1 if quick else 4):
        begins: list[float] = []

        def begin(begins: list[float] = begins) -> None:
            _synchronize()
            begins.append(time.perf_counter())

        programs.drive(name, lambda step: None, begin)
        host.append(time.perf_counter() - begins[0])
        _synchronize()
        wall.append(time.perf_counter() - begins[0])
    return {"wall": wall[-3:], "host": host[-3:], "first": wall[0], "count": 1}


def record_programs(folders: Folders, until: float, quick: bool) -> None:
    writer = Writer(folders, "programs")
    began = time.time()
    for kind, name in _all_programs(quick):
        if time.time() > until:
            return
        if not writer.begin(name):
            continue

        def work(name: str = name) -> dict[str, Any]:
            if programs.is_whole(name):
                return {"unit": "whole"} | _time_whole(name, quick)
            found: dict[str, Any] = {}
            programs.drive(name, lambda step: found.update(_time_steps(step, quick)), lambda: None)
            return {"unit": "step"} | found

        torch.backends.cuda.matmul.allow_tf32 = False
        torch.manual_seed(0)
        guarded(writer, name, {"set": kind, "name": name}, work)
        programs.released()
        print(f"{time.time() - began:.0f} s: timed {name}", flush=True)


# ---- Kernels ---------------------------------------------------------------------------------------------------------


def record_program_kernels(folders: Folders, until: float, quick: bool) -> None:
    writer = Writer(folders, "program_kernels")
    began = time.time()
    for kind, name in _all_programs(quick):
        if time.time() > until:
            return
        if not writer.begin(name):
            continue

        def work(name: str = name) -> dict[str, Any]:
            if not programs.is_whole(name):
                found: dict[str, Any] = {}

                def of_step(step: Callable[[], None]) -> None:
                    for _ in range(3):
                        step()
                    _synchronize()
                    found.update(described(profiled(step), writer.size > _LARGEST * 0.7))

                programs.drive(name, of_step, lambda: None)
                return {"unit": "step"} | found
            programs.drive(name, lambda step: None, lambda: None)
            profile = profiler()

            def begin() -> None:
                _synchronize()
                profile.start()

            programs.drive(name, lambda step: None, begin)
            _synchronize()
            profile.stop()
            return {"unit": "whole"} | described(events_of(profile), writer.size > _LARGEST * 0.7)

        torch.backends.cuda.matmul.allow_tf32 = False
        torch.manual_seed(0)
        guarded(writer, name, {"set": kind, "name": name}, work)
        programs.released()
        print(f"{time.time() - began:.0f} s: profiled {name}", flush=True)


def record_operator_kernels(folders: Folders, until: float, quick: bool) -> None:
    """Three calls of each case under the profiler, several cases at a time."""
    writer = Writer(folders, "operator_kernels")
    cases = list(enumerate(all_cases(quick)))
    for start in range(0, len(cases), 16):
        if time.time() > until or writer.size > _LARGEST:
            return
        part = [(index, case) for index, case in cases[start : start + 16] if writer.begin(str(index))]
        if not part:
            continue
        calls: list[tuple[str, Callable[[], Any]]] = []
        for index, case in part:
            try:
                for direction, call in directions(case):
                    call()
                    calls.append((f"{index}:{direction}", call))
                _synchronize()
            except Exception as error:
                writer.write({"case": case, "index": index, "error": f"{type(error).__name__}: {error}"[:300]})
                if "CUDA error" in str(error):
                    os._exit(3)

        def run(calls: Any = calls) -> None:
            for name, call in calls:
                with torch.profiler.record_function(f"case:{name}"):
                    for _ in range(3):
                        call()
                    _synchronize()

        guarded(writer, "", {"part": start}, lambda run=run: {"cases": by_case(profiled(run))})
        calls.clear()
        programs.released()


# ---- Parts -----------------------------------------------------------------------------------------------------------

Part = Callable[[Folders, float, bool], None]
_RECORDERS: dict[str, Part] = {
    "host": record_host, "operators": record_operators, "programs": record_programs,
    "program_kernels": record_program_kernels, "operator_kernels": record_operator_kernels,
}  # fmt: skip
#: In order: a part, and the share of the time after which it is interrupted.
_PLAN = [
    ("host", 0.08), ("operators", 0.25), ("programs", 0.60), ("program_kernels", 0.83), ("operator_kernels", 0.92),
    ("operators", 1.0),
]  # fmt: skip


def _newest(folders: Folders) -> float:
    """When a part last showed that it lives."""
    return max((path.stat().st_mtime for folder in folders for path in folder.iterdir()), default=0.0)


def run_part(part: str, folders: Folders, until: float, quick: bool) -> None:
    """Runs a part in a process, and again with the next case if it breaks or hangs."""
    for _ in range(8):
        if time.time() > until - 3:
            return
        command = [sys.executable, str(Path(__file__).resolve()), "--out", str(folders.out), "--part", part]
        command += ["--begun", str(folders.begun), "--until", str(until)] + (["--quick"] if quick else [])
        process = subprocess.Popen(command)
        started = time.time()
        while process.poll() is None:
            time.sleep(0.1)
            if time.time() > until + 15 or time.time() - max(_newest(folders), started + 30) > _QUIET:
                print(f"{part}: no sign of life, or late", flush=True)
                process.kill()
                process.wait()
        if process.returncode == 0:
            return
        print(f"{part}: exit code {process.returncode}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="a folder")
    parser.add_argument("--seconds", type=float, default=470.0, help="for everything")
    parser.add_argument("--quick", action="store_true", help="a few cases of each kind")
    parser.add_argument("--part", choices=list(_RECORDERS), help="only this part, in this process")
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--begun", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore")
    folders = Folders(options.out, options.begun or Path(tempfile.mkdtemp(prefix="record_step_time")))
    if options.part:
        until = options.until or time.time() + options.seconds
        _RECORDERS[options.part](folders, until, options.quick)
        return
    began = time.time()
    for part, share in _PLAN:
        run_part(part, folders, began + share * (options.seconds - 18), options.quick)
        print(f"{time.time() - began:.0f} s: {part} ended", flush=True)
    shutil.rmtree(folders.begun)


if __name__ == "__main__":
    main()
