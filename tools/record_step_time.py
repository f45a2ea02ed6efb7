"""Records how long operators, training steps and Python take on a real card. Needs PyTorch alone; run it on the card.

    python tools/record_step_time.py --out FOLDER [--seconds 470] [--quick]

The parts, each in a process of its own that is replaced when it breaks or hangs; all append to their file at once:

    host.jsonl              seconds that Python and PyTorch take on the host: small operators, backward, modules, optimizers
    operators.jsonl         single calls (step_time_cases.py): seconds on the card and on the host, forward and backward
    programs.jsonl          steps of the programs in tests/memory: seconds of a step, and until everything was enqueued
    program_kernels.jsonl   every kernel of a step, with its operator
    operator_kernels.jsonl  every kernel of a single call

`fit_step_time.py` makes a recording of them that the package can use.
"""

from __future__ import annotations

import argparse
import bisect
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
from torch import nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parent))
import step_time_programs as programs
from step_time_cases import OPTIMIZERS, all_cases, build

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


def _host_cases() -> dict[str, Callable[[], tuple[Callable[[], Any], int]]]:
    """By name: a function that makes a call, and how many units of work (operators, parameters) the call has."""

    def small(grad: bool = False) -> torch.Tensor:
        return torch.ones(16, 16, device="cuda", requires_grad=grad)

    operators: dict[str, Callable[[torch.Tensor], Any]] = {
        "add": lambda x: x + x, "mul_scalar": lambda x: x * 2.0, "relu": torch.relu, "gelu": F.gelu, "exp": torch.exp,
        "matmul": lambda x: x @ x, "linear": lambda x: F.linear(x, x, x[0]), "linear_no_bias": lambda x: F.linear(x, x),
        "bmm": lambda x: torch.bmm(x[None], x[None]), "view": lambda x: x.view(-1), "transpose": lambda x: x.transpose(0, 1),
        "select": lambda x: x[0], "slice": lambda x: x[:, :4], "unsqueeze": lambda x: x[None], "permute": lambda x: x.permute(1, 0),
        "expand": lambda x: x[:1].expand(16, 16), "reshape_copy": lambda x: x.t().reshape(-1), "contiguous_copy": lambda x: x.t().contiguous(),
        "sum": torch.sum, "mean": torch.mean, "row_sum": lambda x: x.sum(1), "softmax": lambda x: x.softmax(-1),
        "log_softmax": lambda x: x.log_softmax(-1), "layer_norm": lambda x: F.layer_norm(x, (16,), x[0], x[0]),
        "batch_norm": lambda x: F.batch_norm(x, None, None, x[0], x[0], True), "dropout": lambda x: F.dropout(x, 0.1),
        "cat": lambda x: torch.cat((x, x)), "stack": lambda x: torch.stack((x, x)), "chunk": lambda x: x.chunk(2),
        "embedding": lambda x: F.embedding(_ROWS["rows"], x), "index": lambda x: x[_ROWS["rows"]],
        "gather": lambda x: x.gather(0, _ROWS["square"]), "scatter": lambda x: x.scatter(0, _ROWS["square"], x.detach()),
        "cross_entropy": lambda x: F.cross_entropy(x, _ROWS["rows"]), "mse": lambda x: F.mse_loss(x, x.detach()),
        "cast": lambda x: x.to(torch.bfloat16), "pow": lambda x: x.pow(2), "where": lambda x: torch.where(_ROWS["mask"], x, 0.0),
        "masked_fill": lambda x: x.masked_fill(_ROWS["mask"], 0.0), "sort": lambda x: x.sort(1), "topk": lambda x: x.topk(4),
        "cumsum": lambda x: x.cumsum(1), "conv2d": lambda x: F.conv2d(x.view(1, 4, 8, 8), x.view(-1)[:144].view(4, 4, 3, 3)),
        "max_pool": lambda x: F.max_pool2d(x[None], 2), "interpolate": lambda x: F.interpolate(x[None, None], scale_factor=2.0),
        "attention": lambda x: F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None]),
        "attention_bf16": lambda x: F.scaled_dot_product_attention(*3 * (x.to(torch.bfloat16)[None, None],)),
        "einsum": lambda x: torch.einsum("ij,jk->ik", x, x), "group_norm": lambda x: F.group_norm(x[None], 4),
    }  # fmt: skip
    plain: dict[str, Callable[[], Any]] = {
        "empty": lambda: torch.empty(16, device="cuda"), "zeros": lambda: torch.zeros(16, device="cuda"),
        "randn": lambda: torch.randn(16, device="cuda"), "arange": lambda: torch.arange(16, device="cuda"),
        "randint": lambda: torch.randint(0, 4, (16,), device="cuda"), "item": lambda: _ROWS["rows"][0].item(),
        "scalar_tensor": lambda: torch.tensor(1.0, device="cuda"), "synchronize": torch.cuda.synchronize,
        "no_grad": lambda: _enter(torch.no_grad), "autocast": lambda: _enter(lambda: torch.autocast("cuda", torch.bfloat16)),
        "python_loop": lambda: sum(i * i for i in range(1000)),
        "add_in_place": lambda: _ROWS["float"].add_(1), "add_out": lambda: torch.add(_ROWS["float"], 1, out=_ROWS["float"]),
    }  # fmt: skip
    found: dict[str, Callable[[], tuple[Callable[[], Any], int]]] = {}
    for name, call in plain.items():
        found[f"plain:{name}"] = lambda call=call: (call, 1)
    for name, operator in operators.items():

        def without(operator: Any = operator) -> tuple[Callable[[], Any], int]:
            x = small()
            return lambda: operator(x), 1

        def recording(operator: Any = operator) -> tuple[Callable[[], Any], int]:
            x = small(True)
            return lambda: operator(x), 1

        def backward(operator: Any = operator) -> tuple[Callable[[], Any], int]:
            x = small(True)
            y = operator(x)
            y = y[0] if isinstance(y, (tuple, list)) else y
            gradient = torch.ones_like(y)
            return lambda: torch.autograd.grad(y, x, gradient, retain_graph=True), 1

        def backward_many(operator: Any = operator) -> tuple[Callable[[], Any], int]:
            x = small(True)
            ys = [operator(x) for _ in range(20)]
            ys = [y[0] if isinstance(y, (tuple, list)) else y for y in ys]
            gradients = [torch.ones_like(y) for y in ys]
            return lambda: torch.autograd.grad(ys, x, gradients, retain_graph=True), 20

        found |= {f"forward:{name}": without, f"recording:{name}": recording}
        found |= {f"backward:{name}": backward, f"backward_many:{name}": backward_many}
    modules: dict[str, Callable[[], nn.Module]] = {
        "identity": nn.Identity, "linear": lambda: nn.Linear(16, 16), "relu": nn.ReLU, "layer_norm": lambda: nn.LayerNorm(16),
        "dropout": nn.Dropout, "batch_norm": lambda: nn.BatchNorm1d(16), "sequential": lambda: nn.Sequential(*(nn.Identity() for _ in range(10))),
        "embedding": lambda: nn.Embedding(16, 16), "attention": lambda: nn.MultiheadAttention(16, 2),
        "encoder_layer": lambda: nn.TransformerEncoderLayer(16, 2, 32), "lstm": lambda: nn.LSTM(16, 16), "gru": lambda: nn.GRU(16, 16, 2),
        "lstm_cell": lambda: nn.LSTMCell(16, 16), "gru_cell": lambda: nn.GRUCell(16, 16),
    }  # fmt: skip
    for name, make in modules.items():
        for autocast in (False, True):

            def called(name: str = name, make: Any = make, autocast: bool = autocast) -> tuple[Callable[[], Any], int]:
                module = make().cuda()
                x = _ROWS["rows"] if name == "embedding" else small()
                if name in ("lstm", "gru", "attention", "encoder_layer"):
                    x = x[None]
                arguments = 3 * (x,) if name == "attention" else (x,)

                def run() -> Any:
                    with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
                        return module(*arguments)

                return run, 1

            found[f"module{'_autocast' if autocast else ''}:{name}"] = called
    for name in OPTIMIZERS:
        for count in (1, 10, 100):

            def stepping(name: str = name, count: int = count) -> tuple[Callable[[], Any], int]:
                parameters = [small(True) for _ in range(count)]
                for parameter in parameters:
                    parameter.grad = torch.ones_like(parameter)
                return OPTIMIZERS[name](parameters).step, count

            found[f"optimizer:{name}:{count}"] = stepping
    for count in (1, 10, 100):

        def clipping(count: int = count) -> tuple[Callable[[], Any], int]:
            parameters = [small(True) for _ in range(count)]
            for parameter in parameters:
                parameter.grad = torch.ones_like(parameter)
            return lambda: nn.utils.clip_grad_norm_(parameters, 1.0), count

        def accumulating(count: int = count) -> tuple[Callable[[], Any], int]:
            parameters = [small(True) for _ in range(count)]
            loss = sum((p.sum() for p in parameters), start=torch.zeros((), device="cuda"))
            return lambda: loss.backward(retain_graph=True), count

        found |= {f"clip:{count}": clipping, f"accumulate:{count}": accumulating}
    return found


_ROWS: dict[str, torch.Tensor] = {}


def _enter(make: Callable[[], Any]) -> None:
    with make():
        pass


def record_host(folders: Folders, until: float, quick: bool) -> None:
    writer = Writer(folders, "host")
    if writer.begin("machine"):
        guarded(writer, "machine", {"name": "machine"}, _machine)
    _ROWS["rows"] = torch.arange(16, device="cuda")
    _ROWS["square"] = torch.zeros(16, 16, device="cuda", dtype=torch.int64)
    _ROWS["mask"] = torch.zeros(16, 16, device="cuda", dtype=torch.bool)
    _ROWS["float"] = torch.ones(16, device="cuda")
    for name, make in list(_host_cases().items())[:: 9 if quick else 1]:
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


class Kernels:
    """Every kernel of a profiled call: names and operators in a table, then [index, begin, duration] in microseconds."""

    def __init__(self, events: list[Any]) -> None:
        operators = {
            e.correlation_id(): e
            for e in events
            if e.linked_correlation_id() == 0 and "CPU" in str(e.device_type()) and not e.name().startswith("cu")
        }
        self.launches = sorted(
            (e for e in events if "CUDA" in str(e.device_type()) and not e.is_user_annotation()),
            key=lambda e: e.start_ns(),
        )
        self.calls: dict[str, int] = {}
        for e in events:
            name = e.name()
            if name.startswith(("cuda", "cuLaunch")) and "CPU" in str(e.device_type()):
                self.calls[name] = self.calls.get(name, 0) + 1
        self._operators = operators
        self._table: dict[str, int] = {}

    def key_of(self, kernel: Any) -> int:
        operator = self._operators.get(kernel.linked_correlation_id())
        described: list[Any] = [kernel.name()[:70]]
        if operator is not None:
            described += [operator.name(), operator.shapes(), operator.dtypes()]
        text = json.dumps(described, separators=(",", ":"), default=str)
        return self._table.setdefault(text, len(self._table))

    @property
    def table(self) -> list[Any]:
        return [json.loads(text) for text in self._table]


def profiled(run: Callable[[], Any]) -> list[Any]:
    activities = [torch.profiler.ProfilerActivity.CPU]
    if torch.profiler.ProfilerActivity.CUDA in torch.profiler.supported_activities():
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities, record_shapes=True) as profile:
        run()
        _synchronize()
    assert profile.profiler is not None and profile.profiler.kineto_results is not None
    return list(profile.profiler.kineto_results.events())


def _described(events: list[Any], is_full: bool) -> dict[str, Any]:
    kernels = Kernels(events)
    start = kernels.launches[0].start_ns() if kernels.launches else 0
    rows = [
        [kernels.key_of(e), round((e.start_ns() - start) / 1e3, 1), round(e.duration_ns() / 1e3, 2)]
        for e in kernels.launches
    ]
    busy = sum(row[2] for row in rows)
    found = {"busy": busy / 1e6, "kernels": len(rows), "runtime": kernels.calls, "events": len(events)}
    if is_full:
        sums: dict[int, list[float]] = {}
        for key, _, duration in rows:
            each = sums.setdefault(key, [0, 0.0])
            each[0] += 1
            each[1] += duration
        return found | {"table": kernels.table, "sums": [[key, n, round(us, 2)] for key, (n, us) in sums.items()]}
    return found | {"table": kernels.table, "rows": rows}


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
                    found.update(_described(profiled(step), writer.size > _LARGEST * 0.7))

                programs.drive(name, of_step, lambda: None)
                return {"unit": "step"} | found
            programs.drive(name, lambda step: None, lambda: None)
            activities = [torch.profiler.ProfilerActivity.CPU]
            if torch.profiler.ProfilerActivity.CUDA in torch.profiler.supported_activities():
                activities.append(torch.profiler.ProfilerActivity.CUDA)
            profile = torch.profiler.profile(activities=activities, record_shapes=True)

            def begin() -> None:
                _synchronize()
                profile.start()

            programs.drive(name, lambda step: None, begin)
            _synchronize()
            profile.stop()
            assert profile.profiler is not None and profile.profiler.kineto_results is not None
            events = list(profile.profiler.kineto_results.events())
            return {"unit": "whole"} | _described(events, writer.size > _LARGEST * 0.7)

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

        guarded(writer, "", {"part": start}, lambda run=run: {"cases": _by_case(profiled(run))})
        calls.clear()
        programs.released()


def _by_case(events: list[Any]) -> list[Any]:
    """[case, [[kernel, operator, shapes, dtypes, launches, microseconds of all]]], by when kernels ran."""
    marks = sorted(
        ((e.start_ns(), e.name()) for e in events if e.name().startswith("case:") and "CPU" in str(e.device_type()))
    )
    begins = [begin for begin, _ in marks]
    kernels = Kernels(events)
    found: dict[str, dict[int, list[float]]] = {name: {} for _, name in marks}
    for e in kernels.launches:
        at = bisect.bisect_right(begins, e.start_ns()) - 1
        if at >= 0:
            each = found[marks[at][1]].setdefault(kernels.key_of(e), [0, 0.0])
            each[0] += 1
            each[1] += e.duration_ns() / 1e3
    table = kernels.table
    return [
        [name, [[*table[key], count, round(us, 2)] for key, (count, us) in sums.items()]]
        for name, sums in found.items()
    ]


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
