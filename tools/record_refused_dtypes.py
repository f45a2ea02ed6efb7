"""Records the dtypes that the real kernels refuse, alone and in combination.

Meta kernels compute sizes, but rarely check the dtypes for which a device's kernel is compiled. Every operator reached
by an OpInfo, forward and backward, is called on its sample with other dtypes; what is refused for every sample is
recorded. The record of "cuda" needs a GPU.

    python tools/record_refused_dtypes.py cpu > cmake/records/refused_dtypes.cpu.json

With --alone no combinations are tried, which takes minutes instead of an hour. For another release of PyTorch that is
enough: the dtypes for which a kernel is compiled change, its requirements on combinations hardly ever.

    python tools/record_refused_dtypes.py cpu --alone > cmake/records/refused_dtypes.cpu.2.15.json
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import multiprocessing.connection
import os
import re
import sys
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

#: The dtypes tried in combination.
PAIRED = ("uint8", "int32", "int64", "bool", "float16", "float32", "float64", "bfloat16", "float8_e4m3fn", "complex64")
#: The dtypes tried.
DTYPES = (*PAIRED, "int8", "int16", "uint16", "uint32", "uint64", "float8_e5m2", "complex32", "complex128")
#: The dtype of the samples: the first of these that the operator supports.
BASES = (torch.float32, torch.int64, torch.complex64, torch.bool)
SAMPLES = 6  # per OpInfo
CALLS = 2  # per operator reached by a sample
ENOUGH = 16  # calls of an operator with the same arguments
#: Matches refusals of a combination of dtypes. Other errors are about values, which change when cast, or are raised
#: before any device's kernel, so that the meta kernels raise them too.
ABOUT_A_PAIR = re.compile(
    r"expected scalar type|(same|match\w*) (the )?(data|scalar)? ?d?types?\b|dtypes? .*match|did not match|mixed dtype|"
    r"to have (scalar type|type|dtype)|expected (object of|tensor for)|but got: \w+",
    re.IGNORECASE,
)
#: Not called again: these end the process or wait.
SKIPPED = {"aten::_assert_async", "aten::record_stream"}

Verdict = str | None  # the kernel that is not implemented, or BESIDE; None if accepted
BESIDE = "beside"
NOT_IMPLEMENTED = re.compile(r'"([^"]+)" not implemented for')


class Calls(TorchDispatchMode):
    """Collects the operators called below autograd, with their arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[Any, list[tuple[tuple[Any, ...], dict[str, Any]]]] = defaultdict(list)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "aten" and len(self.seen[func]) < CALLS and func._schema.name not in SKIPPED:
            self.seen[func].append(pytree.tree_map_only(torch.Tensor, copied, (args, kwargs)))
        return func(*args, **kwargs)


def copied(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone() if tensor.layout == torch.strided else tensor.detach()


def dense(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout == torch.strided and not value.is_quantized


def tensor_arguments(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, list[torch.Tensor]]:
    """The tensors of each schema argument that has any."""
    named = {a.name: v for a, v in zip(func._schema.arguments, args, strict=False)} | kwargs
    found = {}
    for name, value in named.items():
        tensors = [t for t in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(t, torch.Tensor)]
        if tensors:
            found[name] = tensors
    return found


def with_integers(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same call with integers in place of numbers that may be either: floating-point ones would promote."""
    numbers = {a.name for a in func._schema.arguments if str(a.type) in ("number", "Optional[number]")}

    def integer(name: str, value: Any) -> Any:
        return 2 if name in numbers and isinstance(value, (float, complex)) else value

    names = [a.name for a in func._schema.arguments]
    new_args = tuple(integer(name, value) for name, value in zip(names, args, strict=False))
    return new_args, {name: integer(name, value) for name, value in kwargs.items()}


def call_with(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], dtypes: dict[str, torch.dtype]) -> Verdict:
    """Makes the call on copies, with the tensors of the named arguments cast."""
    names = [a.name for a in func._schema.arguments]

    def cast(name: str, value: Any) -> Any:
        def one(t: torch.Tensor) -> torch.Tensor:
            t = t.clone()
            return t.to(dtypes[name]) if name in dtypes else t

        return pytree.tree_map_only(torch.Tensor, one, value)

    new_args = tuple(cast(name, value) for name, value in zip(names, args, strict=False))
    new_kwargs = {name: cast(name, value) for name, value in kwargs.items()}
    try:
        func(*new_args, **new_kwargs)
    except Exception as error:
        message = str(error)
        if "CUDA error" in message:
            os._exit(1)  # the results of this process are no longer valid
        if isinstance(error, NotImplementedError) and (kernel := NOT_IMPLEMENTED.match(message)):
            return kernel.group(1)
        return BESIDE if isinstance(error, RuntimeError) and ABOUT_A_PAIR.search(message) else None
    return None


def verdict(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], dtypes: dict[str, torch.dtype]) -> Verdict:
    try:
        as_given = call_with(func, args, kwargs, dtypes)
    except Exception:
        return None  # a dtype that cannot be cast to: no result
    other = with_integers(func, args, kwargs)
    if as_given is None or other == (args, kwargs):
        return as_given
    return as_given if call_with(func, *other, dtypes) is not None else None


def has_dtype(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the caller specifies the dtype to compute in."""
    return any(isinstance(value, torch.dtype) for value in (*args, *kwargs.values()))


Verdicts = dict[tuple[Any, ...], list[Verdict]]


def try_dtypes(
    func: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    found: Verdicts,
    tried: Counter[tuple[Any, ...]],
    alone_only: bool,
) -> None:
    tensors = tensor_arguments(func, args, kwargs)
    if not tensors or not all(dense(t) and t.numel() > 0 for ts in tensors.values() for t in ts):
        return
    first = next(iter(tensors))
    base = tensors[first][0].dtype
    main = [name for name, ts in tensors.items() if all(t.dtype == base for t in ts)]
    op = func._schema.name + ("." + func._schema.overload_name if func._schema.overload_name else "")
    if first not in main or tried[op, tuple(main)] >= ENOUGH or has_dtype(args, kwargs):
        return
    try:
        func(
            *pytree.tree_map_only(torch.Tensor, torch.clone, args),
            **pytree.tree_map_only(torch.Tensor, torch.clone, kwargs),
        )
    except Exception:
        return  # a sample refused without casts gives no information
    tried[op, tuple(main)] += 1
    same_rank = len({t.dim() == 0 for name in main for t in tensors[name]}) == 1
    for name in DTYPES:
        dtype = getattr(torch, name)
        alone = verdict(func, args, kwargs, dict.fromkeys(main, dtype))
        found[op, tuple(main), "all", name].append(alone)
        if alone_only or alone is not None or len(main) < 2 or not same_rank or name not in PAIRED:
            continue
        for other in PAIRED:
            if other == name:
                continue
            for which, changed in [(n, [n]) for n in main[1:]] + ([("rest", main[1:])] if len(main) > 2 else []):
                dtypes = dict.fromkeys(main, dtype) | dict.fromkeys(changed, getattr(torch, other))
                found[op, tuple(main), which, name, other].append(verdict(func, args, kwargs, dtypes))


def reached(op: Any, device: str) -> Iterator[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    """The operators reached by an OpInfo's samples, with the arguments of each."""
    base = next((d for d in BASES if d in op.supported_dtypes(device)), None)
    if base is None:
        return
    grad = base in op.supported_backward_dtypes(device)
    variants = [op.op] + ([op.inplace_variant] if op.inplace_variant is not None else [])
    for variant, with_out in itertools.product(variants, (False, True)):
        if with_out and (variant is not op.op or not op.supports_out):
            continue
        for sample in itertools.islice(op.sample_inputs(device, base, requires_grad=grad), SAMPLES):
            calls = Calls()
            try:
                first, args, kwargs = sample.input, sample.args, sample.kwargs
                if with_out or variant is not op.op:
                    first, args, kwargs = pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, (first, args, kwargs))
                if with_out:
                    kwargs = kwargs | {"out": pytree.tree_map(torch.empty_like, op.op(first, *args, **kwargs))}
                with calls:
                    result = variant(first, *args, **kwargs)
                    roots = [t for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor) and t.requires_grad]
                    if roots:
                        torch.autograd.backward(roots, [torch.ones_like(t) for t in roots])
            except Exception:
                pass  # the operators reached until then count
            for func, seen in calls.seen.items():
                for args, kwargs in seen:
                    yield func, args, kwargs


def serve(device: str, alone_only: bool, pipe: Any) -> None:
    """A worker: receives the index of an OpInfo and what has been tried, and sends its verdicts."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    while (work := pipe.recv()) is not None:
        index, tried = work
        found: Verdicts = defaultdict(list)
        for func, args, kwargs in reached(op_db[index], device):
            try_dtypes(func, args, kwargs, found, tried, alone_only)
        pipe.send(dict(found))


class Worker:
    """A process that tries one OpInfo after another. Some combinations end it."""

    def __init__(self, device: str, alone_only: bool, timeout: float) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=serve, args=(device, alone_only, other), daemon=True)
        self.process.start()
        other.close()
        self.name = ""
        self.timeout = timeout

    def start(self, index: int, tried: Counter[tuple[Any, ...]]) -> None:
        self.name = op_db[index].full_name
        self.deadline = time.monotonic() + self.timeout
        self.pipe.send((index, tried))

    def answer(self) -> Verdicts | None:
        """The verdicts; None if the process ended."""
        try:
            return self.pipe.recv() if self.pipe.poll() else None
        except EOFError:
            return None


def all_verdicts(device: str, wanted: str, jobs: int, alone_only: bool, timeout: float) -> Verdicts:
    waiting = [index for index, op in enumerate(op_db) if wanted in op.full_name]
    total = len(waiting)
    found: Verdicts = defaultdict(list)
    tried: Counter[tuple[Any, ...]] = Counter()
    idle = [Worker(device, alone_only, timeout) for _ in range(min(jobs, total))]
    busy: list[Worker] = []
    while waiting or busy:
        while waiting and idle:
            worker = idle.pop()
            worker.start(waiting.pop(0), tried)
            busy.append(worker)
        ready = multiprocessing.connection.wait([worker.pipe for worker in busy], timeout=1)
        for worker in [w for w in busy if w.pipe in ready or time.monotonic() > w.deadline]:
            busy.remove(worker)
            verdicts = worker.answer()
            print(f"{total - len(waiting) - len(busy)}/{total} {worker.name}", file=sys.stderr)
            if verdicts is None:
                print(f"  {worker.name} ended the process, or took more than {timeout:g} s", file=sys.stderr)
                worker.process.kill()
                idle.append(Worker(device, alone_only, timeout))
                continue
            for key, told in verdicts.items():
                found[key] += told
                tried[key[:2]] += len(told) if key[2:] == ("all", DTYPES[0]) else 0
            idle.append(worker)
    for worker in idle:
        worker.pipe.send(None)
    return found


def refused(verdicts: list[Verdict]) -> Verdict:
    """The refusal, if every sample was refused."""
    return verdicts[0] if all(verdicts) else None


def shortened(others: list[str]) -> list[str] | str:
    """Abbreviates all other tried dtypes as "*"."""
    return "*" if len(others) == len(PAIRED) - 1 else others


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("device", choices=("cpu", "cuda"))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--op", default="", help="only OpInfos whose name contains this")
    parser.add_argument("--alone", action="store_true", help="do not try combinations of dtypes")
    parser.add_argument("--timeout", type=float, default=90, help="seconds for an OpInfo; more on a busy machine")
    options = parser.parse_args()
    record: dict[str, Any] = {}
    found = all_verdicts(options.device, options.op, options.jobs, options.alone, options.timeout)
    for key, verdicts in sorted(found.items(), key=str):
        why = refused(verdicts)
        op, arguments, which, dtype, *other = key
        row = record.setdefault(op, {}).setdefault(",".join(arguments), {})
        if which == "all" and why not in (None, BESIDE):
            row.setdefault("all", {}).setdefault(why, []).append(dtype)
        elif which != "all" and why is not None:
            row.setdefault(which, {}).setdefault(dtype, []).extend(other)
    # A row without refusals determines which arguments another row does not cover.
    record = {op: rows for op, rows in record.items() if any(rows.values())}
    for row in (row for rows in record.values() for row in rows.values()):
        for which in row.keys() - {"all"}:
            row[which] = {dtype: shortened(others) for dtype, others in row[which].items()}
    rows = ",\n".join(f" {json.dumps(op)}: {json.dumps(row)}" for op, row in record.items())
    head = json.dumps({"torch": torch.__version__, "device": options.device, "paired": PAIRED})
    print(f'{head[:-1]}, "refused": {{\n{rows}\n}}}}')
    return 0


if __name__ == "__main__":
    sys.exit(main())
